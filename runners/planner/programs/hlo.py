"""Collectives of a compiled program, parsed from its HLO text."""

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from runners.mesh import granule_factors
from runners.planner.network import sent_across
from runners.planner.programs.hlo_text import (
    Instruction,
    array_bytes,
    arrays,
    attribute,
    operands,
    parse,
    trip_count,
    walk,
)
from runners.planner.programs.metadata import op_name

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
# The program of several TPU slices is that of one; it sends to the same device of other slices through the host.
_TRANSFER = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_FIRST_DEVICE = 100_000  # of slice 1; that of slice n is n times it
_RAGGED = "ragged-all-to-all"  # an all-to-all of rows whose numbers the program computes
# TPU programs fuse an all-reduce with the slice that each device keeps, which is a reduce-scatter.
_SCATTER = "all-reduce-scatter"


@dataclasses.dataclass(frozen=True)
class CollectiveTotal:
    """Total of one kind of collective of one element type along one mesh axis in one step."""

    kind: str  # a name in KINDS
    axis: str  # mesh axes whose devices take part, joined by "+"
    dtype: str  # element type, as in HLO: "bf16"
    count: int  # executions, trip counts of the enclosing loops included
    bytes: int  # sent by each device, in a ring
    network_bytes: int = 0  # of these, sent to other slices or hosts


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective instruction of a program."""

    kind: str
    axis: str
    dtype: str  # element type of the largest array of the result
    loops: tuple[int, ...]  # trip counts of the enclosing loops, outermost first; 1 if unknown
    result_bytes: int  # size of the result on each device
    sent_bytes: int  # sent by each device per execution
    network_bytes: int  # of these, sent to other slices or hosts
    operation: str  # JAX's name of the operation

    @property
    def times(self) -> int:
        """Number of executions per step."""
        return math.prod(self.loops)


def collective_totals(text: str, mesh: Mapping[str, int], granules: Sequence[int] = ()) -> list[CollectiveTotal]:
    """Returns the collectives of one run of a program compiled for `mesh`, by kind, axis and dtype, largest first.

    Args:
      text: `compiled.as_text()`.
      mesh: axis name to size, in the order of the mesh.
      granules: number of the slice or host of each device, in the order of the mesh; empty if there is one.
    """
    return summed(collectives(text, mesh, granules))


def summed(exchanges: Iterable[Collective]) -> list[CollectiveTotal]:
    """Returns the totals of collectives by kind, axis and dtype, largest first."""
    totals: dict[tuple[str, str, str], list[int]] = {}
    for collective in exchanges:
        total = totals.setdefault((collective.kind, collective.axis, collective.dtype), [0, 0, 0])
        total[0] += collective.times
        total[1] += collective.times * collective.sent_bytes
        total[2] += collective.times * collective.network_bytes
    sums = [CollectiveTotal(*key, *total) for key, total in totals.items()]
    return sorted(sums, key=lambda total: -total.bytes)


def collectives(text: str, mesh: Mapping[str, int], granules: Sequence[int] = ()) -> Iterator[Collective]:
    """Yields every collective instruction of a program compiled for `mesh`; arguments as in `collective_totals`."""
    computations, entry = parse(text)
    mesh, slices = _of_one_slice(text, mesh, granules)
    granules = () if slices else granules
    fused = {attribute(i.rest, "calls") for body in computations.values() for i in body if i.opcode == "fusion"}
    counted: set[tuple[str, str]] = set()
    for loops, name, instruction in walk(computations, entry, ()):
        kind = instruction.opcode.removesuffix("-start").replace(_RAGGED, "all-to-all")
        if kind == "send" and (transfer := _TRANSFER.search(instruction.rest)):
            yield _between_slices(instruction, transfer[1], loops, slices)
            continue
        if kind not in KINDS:
            continue
        groups = _groups(instruction.rest, math.prod(mesh.values()))
        axes, size = _axes(groups[0], mesh), len(groups[0])
        # TPU programs split one collective over several fusions, which overlap it with computation.
        one = (str(arrays(instruction.type)), attribute(instruction.rest, "channel_id"))
        if size == 1 or (name in fused and one in counted):
            continue
        counted.add(one)
        payload = _result_bytes(instruction)
        if instruction.opcode.startswith(_RAGGED):
            payload = _ragged_bytes(instruction, computations[name])
        if name.startswith(_SCATTER):
            kind, payload = "reduce-scatter", payload // size
        sent, across = _sent(kind, payload, size), sent_across(kind, payload, size, _fewest(groups, granules))
        dtype = max(arrays(instruction.type), key=array_bytes)[0]
        yield Collective(kind, axes, dtype, loops, payload, sent, across, op_name(instruction))


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
    sizes = [array_bytes(array) for array in arrays(instruction.type)]
    # The start of an asynchronous collective returns ((operands), (results), ...) or (operand, result, ...).
    if instruction.opcode.endswith("-start") and instruction.opcode != "all-reduce-start":
        count = len(re.findall(r"%[\w.\-]+", instruction.rest.partition(")")[0]))
        return sum(sizes[count : 2 * count])
    return sum(sizes)


def _ragged_bytes(instruction: Instruction, computation: Sequence[Instruction]) -> int:
    """Returns the bytes of the rows of one device: those that are sent, or that come back.

    The other array has places for rows of several devices.
    """
    names = operands(instruction)[:2]
    return min(array_bytes(arrays(one.type)[0]) for one in computation if one.name in names)


def _of_one_slice(
    text: str, mesh: Mapping[str, int], granules: Sequence[int]
) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Returns the mesh inside a slice and the slices along each axis, of a program of one slice; else `mesh` and {}."""
    partitions = re.search(r"num_partitions=(\d+)", text[: text.find("\n")])
    if not granules or not partitions or int(partitions[1]) == math.prod(mesh.values()):
        return mesh, {}
    slices = granule_factors(mesh, granules)
    return {axis: size // slices[axis] for axis, size in mesh.items()}, slices


def _between_slices(
    instruction: Instruction, transfer: str, loops: tuple[int, ...], slices: Mapping[str, int]
) -> Collective:
    """Returns the collective of the devices in the same place of several slices, all of whose bytes cross the network.

    Args:
      instruction: the send of what a device contributes.
      transfer: the collective's name in the runtime of several slices.
      loops: as in `Collective`.
      slices: the slices along each mesh axis.
    """
    target = instruction.rest.partition("_xla_megascale_target=")[2]
    if target.startswith('"'):  # "{1,2}x{0:15}": slices x devices of a slice
        members = {int(number) for number in re.findall(r"\d+", target.partition("}")[0])}
    else:  # {{100000,200000},{100001,200001}}: devices of each group
        members = {int(number) // _FIRST_DEVICE for number in re.findall(r"\d+", target.partition("}")[0])}
    name, count = transfer.lower().replace("_", "-"), len(members)
    kind = name if name in KINDS else "collective-permute"
    array = arrays(instruction.type)[0]
    payload = array_bytes(array)
    payload = {"all-gather": payload * count, "reduce-scatter": payload // count}.get(kind, payload)
    sent = _sent(kind, payload, count)
    axes = _axes(sorted(number - 1 for number in members), slices)
    return Collective(kind, axes, array[0], loops, payload, sent, sent, op_name(instruction))


def _axes(members: Sequence[int], mesh: Mapping[str, int]) -> str:
    """Returns the mesh axes that a group of devices spans, joined by "+"."""
    places = np.array(np.unravel_index(members, tuple(mesh.values())))
    return "+".join(axis for axis, row in zip(mesh, places, strict=True) if len(set(row.tolist())) > 1)


def _fewest(groups: Sequence[Sequence[int]], granules: Sequence[int]) -> int:
    """Returns the fewest devices of a group that are in one slice or host; its size if all of them are."""
    if not granules:
        return len(groups[0])
    even = np.array([group for group in groups if len(group) == len(groups[0])])
    places = np.asarray(granules)[even]
    counts = (places[:, :, None] == np.arange(max(granules) + 1)).sum(axis=1)
    return int(counts[counts > 0].min())


def _groups(rest: str, devices: int) -> list[list[int]]:
    """Returns the devices of each group; of a permutation, source and target of each move."""
    pairs = re.search(r"source_target_pairs=\{\{(\d+),(\d+)\}", rest)
    if pairs:
        moves = re.findall(r"\{(\d+),(\d+)\}", rest[pairs.start() :].partition("}}")[0] + "}")
        return [[int(a), int(b)] for a, b in moves if a != b] or [[0]]
    groups = re.search(r"replica_groups=\{(\{[\d,]+\}(?:,\{[\d,]+\})*)\}", rest)
    if groups:
        return [list(map(int, group.split(","))) for group in re.findall(r"[\d,]+", groups[1].replace("},{", " "))]
    iota = re.search(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", rest)
    if iota:
        return _transposed(iota[3], iota[4]).reshape(int(iota[1]), int(iota[2])).tolist()
    mesh_groups = re.search(
        r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? \{([^}]*)\}", rest
    )
    if mesh_groups:
        names, sizes = zip(*re.findall(r"'([^']+)'=(\d+)", mesh_groups[1]), strict=True)
        ids = _transposed(mesh_groups[2], mesh_groups[3]) if mesh_groups[2] else np.arange(devices)
        grid = ids.reshape(tuple(map(int, sizes)))
        grouped_axes = re.findall(r"'([^']+)'", mesh_groups[4])
        order = sorted(range(len(names)), key=lambda place: names[place] in grouped_axes)  # stable
        size = math.prod(int(size) for name, size in zip(names, sizes, strict=True) if name in grouped_axes)
        return grid.transpose(order).reshape(-1, size).tolist()
    return [list(range(devices))]


def _transposed(dims: str, order: str | None) -> np.ndarray:
    shape = tuple(map(int, dims.split(",")))
    grid = np.arange(math.prod(shape)).reshape(shape)
    return (grid.transpose(tuple(map(int, order.split(",")))) if order else grid).ravel()
