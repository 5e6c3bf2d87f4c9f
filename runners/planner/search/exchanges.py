"""Lower bounds of an update's exchanges, from the weight table and the mesh: gradients summed, weights gathered."""

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from layers.collectives import dim_of
from layers.specs import P, axes_of
from runners.machine.chips import Chip
from runners.mesh import granule_factors
from tasks.batch import empty_batch
from tasks.task import Task
from tasks.weight_table import WeightRow, WeightTable

FLOAT32 = 4  # bytes: ZeRO sums gradients in float32 (tasks/gradients.py)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Update:
    """What decides the exchanges of an update, besides its mesh."""

    task: Task
    table: WeightTable  # placed on the mesh
    with_gradient: Collection[str]  # paths of the weights whose gradient is not a constant
    tokens: int  # of an update
    width: int  # bytes of a number in the layers' dtype
    unroll: int  # layers per iteration of the loop over layers, at most


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exchanged:
    """The least that the devices along some axes exchange for one weight."""

    axes: tuple[str, ...]  # that split the rows whose gradients are summed
    bytes: int  # of the complete arrays, one reduce-scatter or all-gather each
    executions: int  # of collectives, at most; the roofline rounds down the bytes of each
    is_explicit: bool  # the program states the exchange along these axes alone; else the compiler chooses it


@dataclasses.dataclass(frozen=True, kw_only=True)
class Times:
    """Lower bounds of the times of exchanges in a roofline."""

    longest: float  # seconds of the longest one, that of all across included
    sum: float  # seconds of all together


def weights_with_gradient(task: Task, rows: int, length: int) -> frozenset[str]:
    """Returns the paths of the weights whose gradient depends on anything, from its trace without a mesh.

    The gradient of a weight that the loss does not read is a constant zero, which a compiler need not exchange.

    Args:
      task: the task.
      rows: of a batch.
      length: positions of a row.
    """
    table = task.weight_table()
    others = {name: value for name, value in table.abstract.items() if name != "params"}
    objective = lambda params, others, batch: task.loss({**others, "params": params}, batch)[0]
    arguments = (table.abstract["params"], others, empty_batch(rows, length))
    jaxpr = jax.make_jaxpr(jax.grad(objective))(*arguments).jaxpr
    depends = set(jaxpr.invars)
    for equation in jaxpr.eqns:
        if any(not isinstance(one, core.Literal) and one in depends for one in equation.invars):
            depends.update(equation.outvars)
    paths = jax.tree.leaves(table.tree(lambda row: row.path)["params"])
    found = zip(paths, jaxpr.outvars, strict=True)
    return frozenset(path for path, one in found if not isinstance(one, core.Literal) and one in depends)


def times(update: Update, mesh: Mapping[str, int], granules: Sequence[int], chip: Chip) -> Times:
    """Returns lower bounds of the times that `runners.planner.network.bounds` finds in the compiled program.

    Group the devices by their place along the axes that split the rows: n groups hold partial sums of a gradient. In a
    reduce-scatter or an all-gather of W bytes, each group sends at least (n-1)/n W, and a device its share of that; if
    the groups lie in h slices or hosts, each of these sends at least (h-1)/h W across. A compiler may exchange along
    more axes at once: the roofline adds the bytes of each set of axes, so the longest of them has at least an equal
    share. Without the network's bandwidth nothing is known of exchanges that may cross it.

    Args:
      update: what is exchanged.
      mesh: axis name to size.
      granules: number of the slice or host of each device, in the order of the mesh.
      chip: whose links and network are used.
    """
    devices, count, along = math.prod(mesh.values()), max(granules) + 1, granule_factors(mesh, granules)
    if math.prod(along.values()) != count:  # they do not follow the axes: nothing is known to cross
        along = dict.fromkeys(mesh, 1)
    sent = across = explicit = 0.0
    for one in exchanged(update, mesh):
        parts, hosts = (math.prod(sizes[axis] for axis in one.axes) for sizes in (mesh, along))
        share = max(0, one.bytes * (parts - 1) / devices - one.executions)
        sent += share
        explicit += share if one.is_explicit else 0.0
        across += max(0, one.bytes * (hosts - 1) / devices - one.executions)
    link, sets = chip.link_bandwidth, _sets_of_axes(update, mesh)
    if count == 1:
        return Times(longest=max(explicit / link, sent / (sets * link)), sum=sent / link)
    if chip.network_bandwidth is None:
        return Times(longest=0.0, sum=0.0)
    network = chip.network_bandwidth
    longest = max(across / network, explicit / (link + network), sent / (sets * link + network))
    least = across / network + (sent - across) / link if network < link else sent / network
    return Times(longest=longest, sum=least)


def exchanged(update: Update, mesh: Mapping[str, int]) -> Iterator[Exchanged]:
    """Yields what the weights of an update exchange along the axes that split its rows.

    These have none: weights without a gradient, and experts that each device keeps.
    """
    zero, placement = update.task.zero, update.task.batch_placement["tokens_bs"]
    of_rows = tuple(axis for entry in placement for axis in axes_of(entry) if mesh[axis] > 1)
    for row in update.table:
        if not row.trained or row.path not in update.with_gradient:
            continue
        if zero is None:
            yield from _by_compiler(row, of_rows, update)
        elif mesh[zero.axis] > 1 and not row.is_local:
            others = {axis for axis, size in mesh.items() if size > 1 and axis != zero.axis}
            is_explicit = others <= {axis for entry in row.spec for axis in axes_of(entry)}
            sums, gathers = _sums(row, zero.axis, update), _gathers(row, zero.axis, update)
            amount = math.prod(row.shape) * (sums * FLOAT32 + gathers * _gathered_width(row, zero.axis, update))
            executions = (sums + gathers) * _layers(row)
            yield Exchanged(axes=(zero.axis,), bytes=amount, executions=executions, is_explicit=is_explicit)


def _sums(row: WeightRow, axis: str, update: Update) -> int:
    """Returns how often ZeRO sums a gradient per update, at least.

    A compiler may move exchanges out of the loop over micro-batches, except those inside another loop, over layers.
    """
    return update.task.gradient_accumulation if _is_split(row.gradient_spec, axis) and _in_loop(row, update) else 1


def _gathers(row: WeightRow, axis: str, update: Update) -> int:
    """Returns how often ZeRO gathers a weight per update, at least.

    Loops over layers gather weights that are stored in parts, and the backward pass gathers matrices again, whatever
    the rematerialization policy (layers/stack.py). The second half of an all-reduce counts as a gather.
    """
    if not _is_split(row.spec, axis) or not _in_loop(row, update):
        return 1
    return update.task.gradient_accumulation * (2 if row.role == "hidden" else 1)


def _gathered_width(row: WeightRow, axis: str, update: Update) -> int:
    """Returns the bytes per number of the array that ZeRO gathers, at least.

    It is the new weight, or what it is computed from; of a weight that is stored in parts, the weight in the layers'
    dtype.
    """
    gradient = np.dtype(update.task.gradient_dtype).itemsize
    return min(np.dtype(row.dtype).itemsize, update.width if _is_split(row.spec, axis) else gradient)


def _is_split(spec: P, axis: str) -> bool:
    return dim_of(spec, axis) is not None


def _in_loop(row: WeightRow, update: Update) -> bool:
    """Returns whether the weights of layers are used inside a loop of several iterations."""
    return row.stacked == 1 and row.shape[0] >= 2 * update.unroll


def _layers(row: WeightRow) -> int:
    return math.prod(row.shape[: row.stacked])


def _by_compiler(row: WeightRow, of_rows: tuple[str, ...], update: Update) -> Iterator[Exchanged]:
    """Yields the sum of a gradient that the compiler exchanges, in the layers' dtype: an all-reduce.

    It may also gather what the gradient is a product of, at least one number per token and row or column of the weight.
    Nothing is known of weights that an axis of the rows splits, and of experts, which see a part of the tokens.
    """
    if not of_rows or set(of_rows) & {axis for entry in row.spec for axis in axes_of(entry)}:
        return
    letters = row.key.rpartition("_")[2]
    if "e" in letters:
        return
    gathered = update.tokens * _layers(row) * min(row.used, default=1)
    amount = update.width * min(2 * math.prod(row.shape), gathered)
    executions = 2 * _layers(row) * update.task.gradient_accumulation
    yield Exchanged(axes=of_rows, bytes=amount, executions=executions, is_explicit=False)


def _sets_of_axes(update: Update, mesh: Mapping[str, int]) -> int:
    """Returns the number of sets of mesh axes that contain an axis of the rows, and so may have these exchanges."""
    axes = [axis for axis, size in mesh.items() if size > 1]
    placement: Any = update.task.batch_placement["tokens_bs"]
    of_rows = {axis for entry in placement for axis in axes_of(entry)}
    return max(1, 2 ** len(axes) - 2 ** len([axis for axis in axes if axis not in of_rows]))
