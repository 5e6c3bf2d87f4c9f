"""Where instructions of a compiled program come from: the layer, the pass, the source line, the argument."""

import re
from collections.abc import Collection
from pathlib import Path

from runners.planner.programs.hlo_text import Instruction

PROJECT = Path(__file__).parents[3]
_LIBRARIES = "/site-packages/"


def op_name(instruction: Instruction) -> str:
    """Returns JAX's name of the operation: jit(step)/jvp(LanguageModel)/stack/.../dot_general; empty if unknown."""
    found = re.search(r'op_name="((?:[^"\\]|\\.)*)"', instruction.rest)
    return found[1].replace("\\'", "'") if found else ""


def layer(name: str, layers: Collection[str]) -> str:
    """Returns the deepest layer in the name of an operation: stack/block/mixer; empty if it is in none.

    Args:
      name: as returned by `op_name`.
      layers: paths of all layers.
    """
    path = ""
    for part in name.split("/"):
        part = part.rpartition("(")[2].rstrip(")").partition(".")[0]
        longer = f"{path}/{part}" if path else part
        if longer in layers:
            path = longer
        elif part in layers:  # a layer that another one calls: the embedding for logits
            path = part
    return path


def layers_of(paths: Collection[str]) -> set[str]:
    """Returns the paths of the layers that hold these weights: stack, stack/block, stack/block/mixer."""
    found = set()
    for path in paths:
        parts = path.split("/")[1:-1]  # without the collection and the weight
        found |= {"/".join(parts[:n]) for n in range(1, len(parts) + 1)}
    return found


def is_backward(name: str) -> bool:
    """Returns whether an operation is part of the backward pass, recomputation included."""
    return "transpose(" in name


def is_forward(name: str) -> bool:
    """Returns whether an operation is part of the forward pass."""
    return "jvp(" in name and not is_backward(name)


def argument(name: str) -> tuple[str, str]:
    """Splits the name of a step's argument into the array's kind and its path.

    >>> argument("state.optimizer[1].mu['stack']['block']['ffn']['ffn_in_mf']")
    ('mu', 'stack/block/ffn/ffn_in_mf')
    """
    start, bracket, keys = name.partition("['")
    path = "/".join(re.findall(r"\['([^']*)'\]", bracket + keys))
    kind = start.rpartition(".")[2]
    if kind == "variables" or start == "variables":
        return "weight", path.partition("/")[2]
    return kind, path


class Sources:
    """Source lines of instructions, from the tables at the start of a program's text."""

    def __init__(self, text: str):
        self._files: dict[int, str] = {}
        self._locations: dict[int, tuple[int, int]] = {}
        self._frames: dict[int, tuple[int, int]] = {}
        section = ""
        for line in text.splitlines():
            if line.endswith("{") and not line.startswith("{"):
                break  # the first computation
            if re.fullmatch(r"\w+", line):
                section = line
                continue
            number, _, content = line.partition(" ")
            if not number.isdecimal():
                continue
            numbers = dict(re.findall(r"(\w+)=(\d+)", content))
            if section == "FileNames":
                self._files[int(number)] = content.strip('"')
            elif section == "FileLocations":
                self._locations[int(number)] = int(numbers["file_name_id"]), int(numbers["line"])
            elif section == "StackFrames":
                location = int(numbers["file_location_id"])
                # The text states the parent's number plus one; 0 is none.
                self._frames[int(number)] = location, int(numbers["parent_frame_id"]) - 1

    def of(self, instruction: Instruction) -> str:
        """Returns the innermost line of this project, "layers/norm.py:36", or of other code outside of libraries."""
        stated = re.search(r'source_file="([^"]*)" source_line=(\d+)', instruction.rest)
        if stated:
            return _shown(stated[1], int(stated[2])) or ""
        found = re.search(r"stack_frame_id=(\d+)", instruction.rest)
        return self._of_frame(int(found[1])) if found else ""

    def _of_frame(self, frame: int) -> str:
        other = ""
        while frame in self._frames:
            location, parent = self._frames[frame]
            file, line = self._locations[location]
            name = _shown(self._files[file], line)
            if name and "/" in name:
                return name
            other = other or name or ""
            frame = parent
        return other


def _shown(file: str, line: int) -> str | None:
    """Returns a line as text: its path in this project, or the file's name outside; None in libraries."""
    if _LIBRARIES in file or file.startswith("<"):
        return None
    path = Path(file)
    return f"{path.relative_to(PROJECT) if path.is_relative_to(PROJECT) else path.name}:{line}"
