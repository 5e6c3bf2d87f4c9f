"""Text of compiled programs (HLO): instructions by computation, the walk over a run, types and operands."""

import dataclasses
import math
import re
from collections.abc import Iterator

_ARRAY = re.compile(r"([a-z]+\d*)\[([\d,]*)\]")  # element type and dimensions
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_BROKEN = re.compile(r'=\{\n("[^\n]*)\n\}')  # an attribute of several lines: the metadata of a kernel for TPUs
_BYTES = {"pred": 1, "bf16": 2, "f16": 2, "f32": 4, "f64": 8, "c64": 8, "c128": 16}


@dataclasses.dataclass(frozen=True)
class Instruction:
    """An instruction of a program."""

    name: str
    type: str  # "f32[8,64]{1,0}", or types of a tuple in parentheses
    opcode: str
    rest: str  # operands and attributes


def parse(text: str) -> tuple[dict[str, list[Instruction]], str]:
    """Returns the instructions of each computation in their order, and the name of the entry computation."""
    computations: dict[str, list[Instruction]] = {}
    name = entry = ""
    for line in _BROKEN.sub(r"={\1}", text).splitlines():
        if line.endswith("{") and " -> " in line and not line.startswith(" "):
            name = line.removeprefix("ENTRY ").lstrip("%").split(" ")[0].split("(")[0]
            entry = name if line.startswith("ENTRY") else entry
            computations[name] = []
        elif match := _INSTRUCTION.match(line):
            computations[name].append(Instruction(*match.groups()))
    return computations, entry


def walk(
    computations: dict[str, list[Instruction]], name: str, loops: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], str, Instruction]]:
    """Yields every instruction reached from a computation: trip counts around it, its computation's name, itself."""
    for instruction in computations.get(name, ()):
        yield loops, name, instruction
        if instruction.opcode == "while":
            body, condition = (attribute(instruction.rest, part) for part in ("body", "condition"))
            count = trip_count(instruction.rest, computations.get(condition, []))
            yield from walk(computations, body, (*loops, count or 1))
        elif instruction.opcode == "conditional":
            parts = ("branch_computations", "true_computation", "false_computation")
            for branch in re.findall(r"[\w.\-]+", " ".join(attribute(instruction.rest, part) for part in parts)):
                yield from walk(computations, branch, loops)
        elif called := attribute(instruction.rest, "calls"):
            yield from walk(computations, called, loops)
        elif instruction.opcode == "call":
            yield from walk(computations, attribute(instruction.rest, "to_apply"), loops)


def attribute(rest: str, name: str) -> str:
    """Returns an attribute of an instruction, without the percent sign of a name; empty if it has none."""
    match = re.search(rf"\b{name}=(\{{[^}}]*\}}|%?[\w.\-]+)", rest)
    return match[1].lstrip("%") if match else ""


def trip_count(rest: str, condition: list[Instruction]) -> int | None:
    """Trip count of a loop: the compiler's annotation, or the bound of its counter; None if unknown."""
    annotation = re.search(r'known_trip_count"?[:=]\{"?n"?[:=]"?(\d+)', rest)
    if annotation:
        return int(annotation[1])
    constants = {i.name: int(i.rest.partition(")")[0]) for i in condition if re.match(r"\d+\)", i.rest)}
    operands = " ".join(i.rest.partition(")")[0] for i in condition if i.opcode in ("compare", "fusion"))
    return next((constants[name] for name in re.findall(r"[\w.\-]+", operands) if name in constants), None)


def _width(kind: str) -> int:
    """Returns the bytes of an element type."""
    digits = re.search(r"\d+", kind)
    return _BYTES.get(kind) or max(1, int(digits[0]) // 8 if digits else 1)


def operands(instruction: Instruction) -> list[str]:
    """Returns the names of an instruction's operands."""
    return re.findall(r"%([\w.\-]+)", instruction.rest.partition("), ")[0])


def arrays(kind: str) -> list[tuple[str, tuple[int, ...]]]:
    """Returns the element type and dimensions of each array of a type."""
    return [(name, tuple(map(int, filter(None, dims.split(","))))) for name, dims in _ARRAY.findall(kind)]


def array_bytes(array: tuple[str, tuple[int, ...]]) -> int:
    """Returns the bytes of an array of `arrays`."""
    return _width(array[0]) * math.prod(array[1])


def array_text(array: tuple[str, tuple[int, ...]]) -> str:
    """Formats an array of `arrays`: bf16[8,64]."""
    return f"{array[0]}[{','.join(map(str, array[1]))}]"
