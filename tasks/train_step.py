"""One update: gradient, optimizer, metrics, all in one pure function."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from flax.core import meta

from layers.auxiliary import apply_updates
from layers.specs import P
from tasks.batch import Batch
from tasks.gradients import gradient_of, handled_mesh
from tasks.metrics import MetricSums
from tasks.task import Task
from tasks.weight_table import WeightTable
from tasks.zero import placed_table


class TrainState(struct.PyTreeNode):
    """All that a training run is at one step, and all that its checkpoint holds."""

    step: jax.Array  # int32: updates made
    variables: Any  # the model's variables
    carry: Any  # the mixers' state behind the last batch, per micro-batch, where rows come in pieces; or None
    optimizer: Any  # the optimizer's state
    sums: MetricSums  # metrics since the last report
    bad_step: jax.Array  # int32: first step with a loss, gradient or new weight that is not finite, 0 for none
    skipped: jax.Array  # int32: updates dropped for that reason


def init_state(task: Task, rng: jax.Array, batch: Batch) -> TrainState:
    """The state before the first update, for batches of as many rows as `batch` has."""
    return state_of(task, meta.unbox(task.init(rng, batch)), batch)


def state_of(task: Task, variables: Any, batch: Batch) -> TrainState:
    """The state before the first update of these variables, for batches of as many rows as `batch` has."""
    optimizer = task.optimizer.build(task.weight_table()).init(variables["params"])
    zero = jnp.int32(0)
    carry = _no_carry(task, batch.inputs.shape[0])
    return TrainState(zero, variables, carry, optimizer, task.zero_sums(), zero, zero)


def _no_carry(task: Task, rows: int) -> Any:
    """The carry in front of new rows."""
    if task.carry_length is None:
        return None
    state = task.init_decode_state(rows // task.microbatches, task.carry_length)
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (task.microbatches, *leaf.shape)), state)


def _carry_specs(task: Task, rows: int) -> Any:
    """Rows of the carry live where the batch's rows do: they are the dimension that grows with their number."""
    few, many = (jax.eval_shape(lambda n=n: _no_carry(task, n)) for n in (rows, 2 * rows))
    placement = task.batch_placement["tokens_bs"][0]
    grows = lambda a, b: P(*[placement if m != n else None for m, n in zip(a.shape, b.shape, strict=True)])
    return jax.tree.map(grows, few, many)


def state_specs(task: Task, table: WeightTable, batch: Batch) -> TrainState:
    """Partition specs in the shape of the state; `table` is the task's, placed on the mesh."""
    abstract = jax.eval_shape(lambda: init_state(task, jax.random.key(0), batch))
    replicated = jax.tree.map(lambda leaf: P(), abstract)
    return replicated.replace(
        variables=table.tree(lambda row: row.spec),
        carry=_carry_specs(task, batch.inputs.shape[0]),
        optimizer=task.optimizer.state_specs(table, abstract.optimizer),
    )


def train_step(task: Task, state: TrainState, batch: Batch, seed: jax.Array, log_every: int) -> TrainState:
    """The state after one update on `batch`. Random numbers follow from `seed` and the step alone.

    `state.sums` starts anew behind every step that `log_every` divides.
    """
    first_step, carry = state.step, state.carry
    if carry is not None and batch.row_positions is not None:
        place = batch.row_positions[0, 0]
        first_step = state.step - place // batch.inputs.shape[1]
        new = _no_carry(task, batch.inputs.shape[0])
        carry = jax.tree.map(lambda fresh, old: jnp.where(place == 0, fresh, old), new, carry)
    # Random numbers new in this update, and those that all pieces of a row share.
    rngs = (jax.random.fold_in(seed, state.step), jax.random.fold_in(jax.random.fold_in(seed, first_step), 1))
    gradient, output = gradient_of(task, state.variables, batch, carry, rngs, _carry_specs(task, batch.inputs.shape[0]))
    wide = lambda tree: jax.tree.map(lambda x: x.astype(jnp.float32), tree)  # whatever they are kept in
    gradient = wide(gradient)
    norm = optax.global_norm(gradient)
    params = _placed(task, "slot_spec", state.variables["params"])
    updates, optimizer = task.optimizer.build(task.weight_table()).update(gradient, state.optimizer, wide(params))
    # Each device updates what it has slots for, then all have the whole again.
    params = _placed(task, "slot_spec", optax.apply_updates(params, updates))
    # Of the new weights, not of the updates: those read the old weights, which then could not be written over. (Who
    # skips such updates keeps the old weights until they are judged.)
    sizes = (output.metrics.objective, norm, optax.global_norm(wide(params)))
    finite = jnp.all(jnp.isfinite(jnp.stack(sizes)))
    variables = apply_updates({**state.variables, "params": _placed(task, "spec", params)}, output.updates)
    metrics = output.metrics.replace(grad_norm=norm, steps=jnp.int32(1))
    skipped, old_carry, carry = state.skipped, carry, output.state
    if task.non_finite == "skip":
        keep = lambda new, old: jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)
        variables, optimizer = keep(variables, state.variables), keep(optimizer, state.optimizer)
        metrics = keep(metrics, task.zero_sums())
        carry = keep(carry, old_carry)
        skipped += jnp.where(finite, 0, 1)
    step = state.step + 1
    fresh = state.step % log_every == 0
    sums = jax.tree.map(lambda total, new: jnp.where(fresh, 0, total) + new, state.sums, metrics)
    bad_step = jnp.where((state.bad_step == 0) & ~finite, step, state.bad_step)
    return TrainState(step, variables, carry, optimizer, sums, bad_step, skipped)


def _placed(task: Task, which: str, params: Any) -> Any:
    """Weights where `which` spec of their rows says, if the task splits its state over a data axis."""
    mesh = handled_mesh(task)
    if mesh is None:
        return params
    rows = placed_table(task, mesh).tree(lambda row: row)["params"]
    return jax.tree.map(lambda row, w: jax.lax.with_sharding_constraint(w, getattr(row, which)), rows, params)
