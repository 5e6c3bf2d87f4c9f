"""Collectives of a compiled program, parsed from its HLO text."""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping

import numpy as np

from runners.planner.programs.hlo_text import ARRAY, Instruction, attribute, parse, trip_count, walk, width
from runners.planner.programs.metadata import op_name

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
# TPU programs fuse an all-reduce with the slice that each device keeps, which is a reduce-scatter.
_SCATTER = "all-reduce-scatter"


@dataclasses.dataclass(frozen=True)
class CollectiveTotal:
    """Total of one kind of collective along one mesh axis in one step."""

    kind: str  # a name in KINDS
    axis: str  # mesh axes whose devices take part, joined by "+"
    count: int  # executions, trip counts of the enclosing loops included
    bytes: int  # sent by each device, in a ring


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective instruction of a program."""

    kind: str
    axis: str
    loops: tuple[int, ...]  # trip counts of the enclosing loops, outermost first; 1 if unknown
    result_bytes: int  # size of the result on each device
    sent_bytes: int  # sent by each device per execution
    operation: str  # JAX's name of the operation

    @property
    def times(self) -> int:
        """Number of executions per step."""
        return math.prod(self.loops)


def collective_totals(text: str, mesh: Mapping[str, int]) -> list[CollectiveTotal]:
    """Returns the collectives of one run of a program compiled for `mesh`, by kind and axis, largest first.

    Args:
      text: `compiled.as_text()`.
      mesh: axis name to size, in the order of the mesh.
    """
    totals: dict[tuple[str, str], list[int]] = {}
    for collective in collectives(text, mesh):
        total = totals.setdefault((collective.kind, collective.axis), [0, 0])
        total[0] += collective.times
        total[1] += collective.times * collective.sent_bytes
    sums = [CollectiveTotal(kind, axis, *total) for (kind, axis), total in totals.items()]
    return sorted(sums, key=lambda total: -total.bytes)


def collectives(text: str, mesh: Mapping[str, int]) -> Iterator[Collective]:
    """Yields every collective instruction of a program compiled for `mesh`; arguments as in `collective_totals`."""
    computations, entry = parse(text)
    fused = {attribute(i.rest, "calls") for body in computations.values() for i in body if i.opcode == "fusion"}
    counted: set[tuple[str, str]] = set()
    for loops, name, instruction in walk(computations, entry, ()):
        kind = instruction.opcode.removesuffix("-start")
        if kind not in KINDS:
            continue
        axes, size = _group(instruction.rest, mesh)
        # TPU programs split one collective over several fusions, which overlap it with computation.
        one = (str(ARRAY.findall(instruction.type)), attribute(instruction.rest, "channel_id"))
        if size == 1 or (name in fused and one in counted):
            continue
        counted.add(one)
        payload = _result_bytes(instruction)
        if name.startswith(_SCATTER):
            kind, payload = "reduce-scatter", payload // size
        yield Collective(kind, axes, loops, payload, _sent(kind, payload, size), operation=op_name(instruction))


def loops_counted_once(text: str) -> int:
    """Number of loops of unknown trip count, whose collectives are counted once."""
    computations, _ = parse(text)
    loops = (i for body in computations.values() for i in body if i.opcode == "while")
    return sum(trip_count(i.rest, computations.get(attribute(i.rest, "condition"), [])) is None for i in loops)


def _sent(kind: str, payload: int, size: int) -> int:
    """Returns the bytes that each of `size` devices sends in a ring, for a result of `payload` bytes on each."""
    if kind == "collective-permute":
        return payload
    if kind == "reduce-scatter":
        return payload * (size - 1)
    return (2 if kind == "all-reduce" else 1) * payload * (size - 1) // size


def _result_bytes(instruction: Instruction) -> int:
    arrays = ARRAY.findall(instruction.type)
    sizes = [width(kind) * math.prod(map(int, filter(None, dims.split(",")))) for kind, dims in arrays]
    # The start of an asynchronous collective returns ((operands), (results), ...) or (operand, result, ...).
    if instruction.opcode.endswith("-start") and instruction.opcode != "all-reduce-start":
        operands = len(re.findall(r"%[\w.\-]+", instruction.rest.partition(")")[0]))
        return sum(sizes[operands : 2 * operands])
    return sum(sizes)


def _group(rest: str, mesh: Mapping[str, int]) -> tuple[str, int]:
    """Returns the mesh axes that a group of devices spans, joined by "+", and the size of the group."""
    members = _first_group(rest, math.prod(mesh.values()))
    places = np.array(np.unravel_index(members, tuple(mesh.values())))
    axes = [axis for axis, row in zip(mesh, places, strict=True) if len(set(row.tolist())) > 1]
    return "+".join(axes), len(members)


def _first_group(rest: str, devices: int) -> list[int]:
    pairs = re.search(r"source_target_pairs=\{\{(\d+),(\d+)\}", rest)
    if pairs:
        moves = re.findall(r"\{(\d+),(\d+)\}", rest[pairs.start() :].partition("}}")[0] + "}")
        return next(([int(a), int(b)] for a, b in moves if a != b), [0])
    groups = re.search(r"replica_groups=\{\{([\d,]+)\}", rest)
    if groups:
        return list(map(int, groups[1].split(",")))
    iota = re.search(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", rest)
    if iota:
        return _transposed(iota[3], iota[4]).reshape(int(iota[1]), int(iota[2]))[0].tolist()
    mesh_groups = re.search(
        r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? \{([^}]*)\}", rest
    )
    if mesh_groups:
        names, sizes = zip(*re.findall(r"'([^']+)'=(\d+)", mesh_groups[1]), strict=True)
        ids = _transposed(mesh_groups[2], mesh_groups[3]) if mesh_groups[2] else np.arange(devices)
        grid = ids.reshape(tuple(map(int, sizes)))
        grouped_axes = re.findall(r"'([^']+)'", mesh_groups[4])
        return grid[tuple(slice(None) if name in grouped_axes else 0 for name in names)].ravel().tolist()
    return list(range(devices))


def _transposed(dims: str, order: str | None) -> np.ndarray:
    shape = tuple(map(int, dims.split(",")))
    grid = np.arange(math.prod(shape)).reshape(shape)
    return (grid.transpose(tuple(map(int, order.split(",")))) if order else grid).ravel()
