"""The training update: gradient, optimizer and metrics in one pure function."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from flax.core import meta

from layers.auxiliary import apply_updates
from layers.specs import P
from tasks.batch import Batch
from tasks.gradients import Rngs, explicit_mesh, gradient_of
from tasks.metrics import MetricSums
from tasks.programs import ends_window
from tasks.task import Task
from tasks.weight_table import WeightTable
from tasks.zero import placed_table


class TrainState(struct.PyTreeNode):
    """The complete state of a training run at one step, as saved in checkpoints."""

    step: jax.Array  # int32: number of updates so far
    variables: Any  # the model's variables
    carry: Any  # the mixers' state after the last batch, per micro-batch, if rows are read in chunks (TBPTT); or None
    optimizer: Any  # the optimizer's state
    sums: MetricSums  # metrics since the last report
    bad_step: jax.Array  # int32: first step with a loss, gradient or new weight that is not finite, 0 for none
    skipped: jax.Array  # int32: updates dropped for that reason, or as spikes
    recent: Any = None  # loss and gradient norm of the last updates (tasks.spikes), if spikes are dropped; or None


def init_state(task: Task, rng: jax.Array, batch: Batch) -> TrainState:
    """Returns the state before the first update, for batches with as many rows as `batch`."""
    return state_of(task, meta.unbox(task.init(rng, batch)), batch)


def state_of(task: Task, variables: Any, batch: Batch) -> TrainState:
    """Returns the state before the first update of these variables, for batches with as many rows as `batch`."""
    table = task.weight_table()
    optimizer = task.optimizer.build(table).init(table.trained(variables["params"]))
    zero = jnp.int32(0)
    carry = _no_carry(task, batch.inputs.shape[0])
    recent = None if task.spikes is None else task.spikes.unknown()
    return TrainState(zero, variables, carry, optimizer, task.zero_sums(), zero, zero, recent)


def evaluated_variables(task: Task, state: TrainState) -> Any:
    """Returns the variables to evaluate, sample from and export: with the optimizer's average of weights, if any."""
    table, params = task.weight_table(), state.variables["params"]
    weights = task.optimizer.evaluated(table.trained(params), state.optimizer)
    return {**state.variables, "params": table.with_trained(weights, params)}


def abstract_state(task: Task, batch: Batch) -> TrainState:
    """Returns the shapes and dtypes of `init_state`, from the weight table."""
    return jax.eval_shape(lambda variables: state_of(task, variables, batch), task.weight_table().abstract)


def _no_carry(task: Task, rows: int) -> Any:
    """Returns the initial carry of new rows."""
    if task.carry_length is None:
        return None
    state = task.init_decode_state(rows // task.gradient_accumulation, task.carry_length)
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (task.gradient_accumulation, *leaf.shape)), state)


def carry_specs(task: Task, rows: int) -> Any:
    """Returns the specs of the carry: the dimension that grows with the number of rows is split like rows."""
    few, many = (jax.eval_shape(lambda n=n: _no_carry(task, n)) for n in (rows, 2 * rows))
    placement = task.batch_placement["tokens_bs"][0]
    grows = lambda a, b: P(*[placement if m != n else None for m, n in zip(a.shape, b.shape, strict=True)])
    return jax.tree.map(grows, few, many)


def state_specs(task: Task, table: WeightTable, abstract: TrainState, batch: Batch) -> TrainState:
    """Returns partition specs in the tree structure of `abstract`, which is the abstract state for these batches.

    `table` is the task's, placed on the mesh.
    """
    replicated = jax.tree.map(lambda leaf: P(), abstract)
    return replicated.replace(
        variables=table.tree(lambda row: row.spec),
        carry=carry_specs(task, batch.inputs.shape[0]),
        optimizer=task.optimizer.state_specs(table, abstract.optimizer),
    )


def train_step(
    task: Task, state: TrainState, batch: Batch, seed: jax.Array, log_every: int, borders: Sequence[int] = ()
) -> TrainState:
    """Returns the state after one update on `batch`. Random numbers depend only on `seed` and the step.

    `state.sums` restarts from zero after every step that `log_every` divides, and after those in `borders`.
    """
    carry, rngs = carry_and_keys(task, state, batch, seed)
    gradient, output = gradient_of(task, state.variables, batch, carry, rngs, carry_specs(task, batch.inputs.shape[0]))
    wide = lambda tree: jax.tree.map(lambda x: x.astype(jnp.float32), tree)  # whatever the stored dtype
    gradient = wide(gradient)
    norm = optax.global_norm(gradient)
    table, every = task.weight_table(), state.variables["params"]
    params = _placed(task, "slot_spec", table.trained(every))
    updates, optimizer = task.optimizer.build(table).update(gradient, state.optimizer, wide(params))
    # Each device updates the shard that it has slots for, then all devices gather the complete weights.
    params = _placed(task, "slot_spec", optax.apply_updates(params, updates))
    # Norm of the new weights, not of the updates: updates depend on the old weights, whose buffers could then not be
    # reused. (With non_finite = "skip" the old weights are kept until the check in any case.)
    sizes = (output.metrics.objective, norm, optax.global_norm(wide(params)))
    finite = jnp.all(jnp.isfinite(jnp.stack(sizes)))
    params = table.with_trained(_placed(task, "spec", params), every)
    variables = apply_updates({**state.variables, "params": params}, output.updates)
    metrics = output.metrics.replace(grad_norm=norm, steps=jnp.int32(1))
    drop, keeps, recent = jnp.bool_(False), task.non_finite == "skip" or task.spikes is not None, None
    if task.spikes is not None:
        values = jnp.stack([metrics.objective / metrics.normalizer, norm])
        drop = task.spikes.is_spike(state.recent, values)
        recent = task.spikes.noted(state.recent, state.step, values)
    if task.non_finite == "skip":
        drop |= ~finite
        metrics = jax.tree.map(lambda new: jnp.where(finite, new, jnp.zeros_like(new)), metrics)
    skipped, old_carry, carry = state.skipped, carry, output.state
    if keeps:
        keep = lambda new, old: jax.tree.map(lambda n, o: jnp.where(drop, o, n), new, old)
        variables, carry = keep(variables, state.variables), keep(carry, old_carry)
        schedule = lambda part: isinstance(part, optax.ScaleByScheduleState)  # counts dropped updates too
        kept = lambda new, old: new if schedule(new) else keep(new, old)
        optimizer = jax.tree.map(kept, optimizer, state.optimizer, is_leaf=schedule)
        skipped += jnp.where(drop, 1, 0)
    step = state.step + 1
    fresh = ends_window(state.step, log_every, borders)
    sums = jax.tree.map(lambda total, new: jnp.where(fresh, 0, total) + new, state.sums, metrics)
    bad_step = jnp.where((state.bad_step == 0) & ~finite, step, state.bad_step)
    return TrainState(step, variables, carry, optimizer, sums, bad_step, skipped, recent)


def carry_and_keys(task: Task, state: TrainState, batch: Batch, seed: jax.Array) -> tuple[Any, Rngs]:
    """Returns the carry that an update on `batch` starts with, and its keys for random numbers."""
    first_step, carry = state.step, state.carry
    if carry is not None and batch.row_positions is not None:
        place = batch.row_positions[0, 0]
        first_step = state.step - place // batch.inputs.shape[1]
        new = _no_carry(task, batch.inputs.shape[0])
        carry = jax.tree.map(lambda fresh, old: jnp.where(place == 0, fresh, old), new, carry)
    # One key per update, and one that all chunks of a row share.
    return carry, (jax.random.fold_in(seed, state.step), jax.random.fold_in(jax.random.fold_in(seed, first_step), 1))


def _placed(task: Task, which: str, params: Any) -> Any:
    """Places trained weights by the spec `which` of their rows if the task splits its state over a data axis."""
    mesh = explicit_mesh(task)
    if mesh is None:
        return params
    rows = placed_table(task, mesh).params
    return jax.tree.map(lambda row, w: jax.lax.with_sharding_constraint(w, getattr(row, which)), rows, params)
