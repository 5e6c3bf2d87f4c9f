"""Summaries of one update, to find the first value that is not finite: outputs of layers, gradient, new weights."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from layers.auxiliary import RowSummary
from tasks.batch import Batch
from tasks.gradients import gradient_of
from tasks.task import Task
from tasks.train_step import TrainState, carry_and_keys, carry_specs, train_step
from tasks.weight_table import WeightTable


class ArraySummary(struct.PyTreeNode):
    """What is known of the gradient or new value of a weight, with a leading dimension of layers if it is stacked."""

    bad: jax.Array  # int32: number of elements that are not finite
    largest: jax.Array  # float32: largest absolute value of the finite ones


class UpdateSummary(struct.PyTreeNode):
    """What is known of an update after its gradient."""

    weights: dict[str, ArraySummary]  # new weights, by path
    objective: jax.Array  # sum over the batch
    gradient_norm: jax.Array
    bad_step: jax.Array  # number of the update if a sum or norm is not finite, else that of an earlier one, or 0


def output_summaries(task: Any, state: TrainState, batch: Batch, seed: jax.Array) -> dict[str, RowSummary]:
    """Returns the summaries of `checked_outputs` of a task for all rows of a batch, in the order of the batch.

    The forward pass is that of the update, except that the compiler splits it over the mesh, without ZeRO's exchanges
    and the schedule of a pipeline. Tasks without `checked_outputs` have none.
    """
    if not hasattr(task, "checked_outputs"):
        return {}
    task, parts = dataclasses.replace(task, zero=None), task.gradient_accumulation
    carry, keys = carry_and_keys(task, state, batch, seed)
    rows = jax.tree.map(lambda x: x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1), batch)  # as in tasks.gradients

    def of_part(part: tuple[Any, ...]) -> dict[str, RowSummary]:
        index, rows, carry = part
        own = keys if parts == 1 else tuple(jax.random.fold_in(key, index) for key in keys)
        return task.checked_outputs(state.variables, rows, carry, *own)

    found = jax.lax.map(of_part, (jnp.arange(parts), rows, carry))
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, -1).reshape(*x.shape[1:-1], -1), found)


def gradient_summaries(task: Task, state: TrainState, batch: Batch, seed: jax.Array) -> dict[str, ArraySummary]:
    """Returns a summary of the gradient of each trained weight, by path."""
    carry, keys = carry_and_keys(task, state, batch, seed)
    specs = carry_specs(task, batch.inputs.shape[0])
    gradient, _ = gradient_of(task, state.variables, batch, carry, keys, specs)
    return _summaries(task.weight_table(), gradient)


def update_summary(
    task: Task, state: TrainState, batch: Batch, seed: jax.Array, log_every: int, borders: Sequence[int]
) -> UpdateSummary:
    """Returns a summary of the update; arguments as in `train_step`."""
    fresh = state.replace(sums=jax.tree.map(jnp.zeros_like, state.sums))
    new, table = train_step(task, fresh, batch, seed, log_every, borders), task.weight_table()
    weights = _summaries(table, table.trained(new.variables["params"]))
    return UpdateSummary(weights, new.sums.objective, new.sums.grad_norm, new.bad_step)


def _summaries(table: WeightTable, arrays: Any) -> dict[str, ArraySummary]:
    """Returns a summary of each array of a tree of the trained weights, by path."""
    rows = jax.tree.leaves(table.params)
    pairs = zip(rows, jax.tree.leaves(arrays), strict=True)
    return {row.path: _summary(array, row.stacked) for row, array in pairs}


def _summary(x: jax.Array, stacked: int) -> ArraySummary:
    is_bad, inner = ~jnp.isfinite(x), tuple(range(stacked, x.ndim))
    largest = jnp.max(jnp.where(is_bad, 0, jnp.abs(x)), axis=inner)
    return ArraySummary(jnp.sum(is_bad, axis=inner, dtype=jnp.int32), largest.astype(jnp.float32))
