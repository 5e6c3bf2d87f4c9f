"""Bytes that a compiled program moves between a device's memory and its host's, as REMAT=offload does."""

import math
from collections.abc import Iterator

from runners.planner.programs.hlo_text import Instruction, array_bytes, arrays, operands, parse, walk

HOST = "S(5)"  # the memory space of the host in layouts


def host_transfers(text: str) -> dict[str, int]:
    """Returns the bytes moved per device and step, by direction: `to` the host's memory and `from` it.

    Loops are multiplied by their trip counts, or counted once where these are unknown.

    Args:
      text: `compiled.as_text()`.
    """
    moved = {"to": 0, "from": 0}
    if HOST not in text:
        return moved
    computations, entry = parse(text)
    types = {name: {one.name: one.type for one in body} for name, body in computations.items()}
    for loops, name, instruction in walk(computations, entry, ()):
        for direction, size in _moved(instruction, types[name]):
            moved[direction] += size * math.prod(loops)
    return moved


def _moved(instruction: Instruction, types: dict[str, str]) -> Iterator[tuple[str, int]]:
    """Yields the direction and the bytes of one transfer: of a copy, or of a slice of an array in the host's memory."""
    given = [types.get(name, "") for name in operands(instruction)]
    match instruction.opcode, given:
        case "dynamic-update-slice", [whole, part, *_] if HOST in whole and HOST not in part:
            yield "to", _bytes(part)
        case "dynamic-slice", [whole, *_] if HOST in whole and HOST not in instruction.type:
            yield "from", _bytes(instruction.type)
        case (("copy" | "copy-start"), [source]):
            result = _first(instruction.type)
            if (HOST in result) != (HOST in source):
                yield ("to" if HOST in result else "from"), _bytes(source)


def _first(kind: str) -> str:
    """Returns the first type of a tuple, the result of a `copy-start`, or the type itself."""
    return kind.removeprefix("(").partition("}, ")[0] if kind.startswith("(") else kind


def _bytes(kind: str) -> int:
    return array_bytes(arrays(kind)[0])
