"""Peaks explained: the largest buffers at the peak with their layers and source lines, and memory over the schedule."""

import bisect
import dataclasses
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from runners.planner.programs.buffers import Buffers, Definition, Fixed, Temporary
from runners.planner.programs.hlo_text import (
    Instruction,
    array_text,
    arrays,
    attribute,
    operands,
    parse,
)
from runners.planner.programs.metadata import (
    Sources,
    argument,
    is_backward,
    is_forward,
    layer,
    layers_of,
    op_name,
)

LARGEST = 10
POINTS = 200  # of the schedule
_STEPS = 20  # at most, from a value to the operation that made it
TOLERANCE = 0.05  # between the sum of the buffers and the compiler's peak
KINDS = ("weights", "optimizer", "other arguments", "forward pass", "backward pass", "update and other")
_UNKNOWN = "The compiler does not report its buffers, so the peak is not explained."
# The operation that moves a value without changing it, to find the layer that made it.
_MOVES = {"bitcast", "copy", "reshape", "convert", "transpose", "broadcast", "dynamic-update-slice", "fusion"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """A buffer that is in use at the peak."""

    bytes: int
    what: str  # "weight", an optimizer's slot, or the type of a temporary array
    layer: str
    source: str  # "layers/norm.py:36"
    row: str  # of the weight table
    kind: str  # a name in KINDS


def explain(text: str, buffers: Buffers | None, rows: Collection[str], peak: int, *, has_peak: bool) -> dict[str, Any]:
    """Returns `peak_buffers` and `peak_schedule` of plan.json, or `peak_unexplained`, a sentence.

    Args:
      text: `compiled.as_text()`.
      buffers: the buffers of the program, if the compiler reports them.
      rows: paths in the weight table.
      peak: bytes per device of the plan.
      has_peak: the peak is the compiler's. Else it is the sum of arguments, outputs and the arena of temporaries, whose
        gaps are among the other buffers, and constants are not part of it.
    """
    if buffers is None:
        return {"peak_unexplained": _UNKNOWN}
    origins = Origins(text, rows)
    fixed = [one for one in buffers.fixed if has_peak or not one.is_constant]
    always = [origins.fixed(one) for one in fixed]
    temporaries = [(one, origins.temporary(one)) for one in buffers.temporaries]
    at = _peak_event(buffers)
    parts = [*always, *(part for one, part in temporaries if one.begin <= at < one.end)]
    parts.sort(key=lambda part: -part.bytes)
    rest = parts[LARGEST:]
    gaps = 0 if has_peak else buffers.heap - sum(one.bytes for one in buffers.temporaries if one.begin <= at < one.end)
    total = sum(part.bytes for part in parts) + gaps
    if abs(total - peak) > TOLERANCE * peak:
        return {"peak_unexplained": f"The compiler's buffers sum to {total:,} B, its peak is {peak:,} B."}
    other = {"bytes": sum(part.bytes for part in rest) + gaps, "what": f"{len(rest)} other buffers"}
    shown = [
        {key: getattr(part, key) for key in ("bytes", "what", "layer", "source", "row")} for part in parts[:LARGEST]
    ]
    return {
        "peak_buffers": [*shown, other | dict.fromkeys(("layer", "source", "row"), "")],
        "peak_schedule": _schedule(always, temporaries, buffers.events, at),
    }


def _peak_event(buffers: Buffers) -> int:
    """Returns the number of the event after which temporaries are largest."""
    changes = [0] * (buffers.events + 1)
    for one in buffers.temporaries:
        changes[one.begin] += one.bytes
        changes[one.end] -= one.bytes
    sizes = list(_running(changes))
    return max(range(len(sizes)), key=sizes.__getitem__)


def _running(changes: Sequence[int]) -> Iterator[int]:
    total = 0
    for change in changes:
        total += change
        yield total


def _schedule(
    fixed: Sequence[Part], temporaries: Sequence[tuple[Temporary, Part]], events: int, peak: int
) -> dict[str, Any]:
    """Returns bytes by kind at no more than POINTS places of the schedule, each the largest of its neighbors."""
    always = {kind: sum(part.bytes for part in fixed if part.kind == kind) for kind in KINDS}
    changes = {kind: [0] * (events + 1) for kind in KINDS}
    for one, part in temporaries:
        changes[part.kind][one.begin] += one.bytes
        changes[part.kind][one.end] -= one.bytes
    alive = {kind: list(_running(changes[kind])) for kind in KINDS}
    total = [sum(each) for each in zip(*alive.values(), strict=True)]
    stride = -(-len(total) // POINTS)
    groups = [range(at, min(at + stride, len(total))) for at in range(0, len(total), stride)]
    places = [max(group, key=total.__getitem__) for group in groups]
    scale = max(events, 1)
    return {
        "places": [round(place / scale, 4) for place in places],
        "peak": bisect.bisect_left(places, peak),
        "bytes": {kind: [always[kind] + alive[kind][place] for place in places] for kind in KINDS},
    }


class Origins:
    """Finds the layer, the source line and the weight of buffers."""

    def __init__(self, text: str, rows: Collection[str]):
        self._computations, entry = parse(text)
        self._sources = Sources(text)
        self._layers = layers_of(rows)
        self._rows = {row.partition("/")[2]: row for row in rows}
        self._instructions = {i.name: i for body in self._computations.values() for i in body}
        self._parameters = {
            int(i.rest.partition(")")[0]): i for i in self._computations.get(entry, ()) if i.opcode == "parameter"
        }

    def fixed(self, one: Fixed) -> Part:
        """Returns an argument of the program, a result or a constant."""
        parameter = self._parameters.get(-1 if one.parameter is None else one.parameter)
        if parameter is None:
            what = "constant" if one.is_constant else "result"
            return Part(bytes=one.bytes, what=what, layer="", source="", row="", kind="update and other")
        name = op_name(parameter)
        what, path = argument(name)
        row = self._rows.get(path, "")
        kind = "other arguments"
        if "variables" in name.partition("[")[0]:
            kind = "weights"
        elif ".optimizer" in name:
            kind = "optimizer"
        return Part(bytes=one.bytes, what=what, layer=layer(path, self._layers), source="", row=row, kind=kind)

    def temporary(self, one: Temporary) -> Part:
        """Returns a temporary array, with the origin of the value in it that is known best."""
        origins = [self._origin(definition) for definition in one.definitions]
        place, source, name = max(origins, key=lambda origin: (origin[0].count("/") + bool(origin[0]), bool(origin[1])))
        names = [name, *(origin[2] for origin in origins)]
        kind = "update and other"
        if any(map(is_forward, names)):
            kind = "forward pass"
        elif any(map(is_backward, names)):
            kind = "backward pass"
        return Part(bytes=one.bytes, what=self._type(one), layer=place, source=source, row="", kind=kind)

    def _type(self, one: Temporary) -> str:
        """Returns the type of the first array that is stored in a buffer, else the name of its instruction."""
        for definition in one.definitions:
            instruction = self._instructions.get(definition.instruction)
            found = arrays(instruction.type) if instruction else []
            index = definition.index[0] if definition.index else 0
            if index < len(found):
                return array_text(found[index])
        return one.definitions[0].instruction.rstrip(".0123456789")

    def _origin(self, definition: Definition) -> tuple[str, str, str]:
        """Returns the layer, the source line and the operation's name of a value."""
        instruction = self._instructions.get(definition.instruction)
        if instruction is None or instruction.opcode in ("parameter", "while", "tuple"):
            return "", "", "" if instruction is None else op_name(instruction)
        name = op_name(instruction)
        if instruction.opcode == "fusion" and "dynamic_update_slice" in name:
            made = self._stored(instruction)
            if made is not None and layer(op_name(made), self._layers) > layer(name, self._layers):
                instruction, name = made, op_name(made)
        for _ in range(_STEPS):  # the compiler's own instructions have no name: the value is that of an operand
            if "/" in name:
                break
            made = next((self._instructions[one] for one in operands(instruction) if one in self._instructions), None)
            if made is None:
                break
            instruction, name = made, op_name(made)
        return layer(name, self._layers), self._sources.of(instruction), name

    def _stored(self, fusion: Instruction) -> Instruction | None:
        """Returns the instruction that makes the value that a fusion stores into a slice of an array."""
        body = self._computations.get(attribute(fusion.rest, "calls"), [])
        inside = {i.name: i for i in body}
        update = next((i for i in body if i.opcode == "dynamic-update-slice"), None)
        value = inside.get(operands(update)[1]) if update and len(operands(update)) > 1 else None
        around = operands(fusion)
        for _ in range(_STEPS):
            if value is None:
                return None
            if value.opcode == "parameter" and value.name in inside:
                value = self._instructions.get(around[int(value.rest.partition(")")[0])])
            elif value.opcode == "get-tuple-element" or (value.opcode in _MOVES and value.opcode != "fusion"):
                value = next((inside.get(one) or self._instructions.get(one) for one in operands(value)), None)
            else:
                return value
        return value
