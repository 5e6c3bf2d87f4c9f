"""One update: gradient, optimizer, metrics, all in one pure function."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from flax.core import meta

from layers.reports import add_updates, apply_updates
from layers.specs import P
from layers.weight import GRADIENT
from tasks.batch import Batch
from tasks.metrics import MetricSums
from tasks.task import LossOutput, Task


class TrainState(struct.PyTreeNode):
    """All that a training run is at one step, and all that its checkpoint holds."""

    step: jax.Array  # int32: updates made
    variables: Any  # the model's variables
    carry: Any  # the mixers' state behind the last batch, per micro-batch, where rows come in pieces; or None
    optimizer: Any  # the optimizer's state
    sums: MetricSums  # metrics since the last report
    bad_step: jax.Array  # int32: first step with a loss, gradient or update that is not finite, 0 for none
    skipped: jax.Array  # int32: updates dropped for that reason


def init_state(task: Task, rng: jax.Array, batch: Batch) -> TrainState:
    """The state before the first update, for batches of as many rows as `batch` has."""
    variables = meta.unbox(task.init(rng, batch))
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


def state_specs(task: Task, batch: Batch) -> TrainState:
    """Partition specs in the shape of the state."""
    table = task.weight_table()
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
    gradient, output = _gradient(task, state.variables, batch, carry, rngs)
    norm = optax.global_norm(gradient)
    params = state.variables["params"]
    updates, optimizer = task.optimizer.build(task.weight_table()).update(gradient, state.optimizer, params)
    sizes = (output.metrics.objective, norm, optax.global_norm(updates))
    finite = jnp.all(jnp.isfinite(jnp.stack(sizes)))
    variables = apply_updates({**state.variables, "params": optax.apply_updates(params, updates)}, output.updates)
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


def _gradient(
    task: Task, variables: Any, batch: Batch, carry: Any, rngs: tuple[jax.Array, jax.Array]
) -> tuple[Any, LossOutput]:
    """The gradient of the mean objective over the batch, worked through in `task.microbatches` pieces.

    `carry`, and the state of the output, have a leading dimension of pieces.
    """

    narrow = task.gradient_dtype != "float32"
    target = GRADIENT if narrow else "params"  # what the objective is differentiated by

    def objective(arrays, batch, state, rngs):
        return task.loss({**variables, target: arrays}, batch, state, *rngs)

    def piece(batch, state, rngs):
        arrays = variables["params"]
        if narrow:
            arrays = jax.tree.map(lambda w: jnp.zeros(w.shape, task.gradient_dtype), arrays)
        return jax.grad(objective, has_aux=True)(arrays, batch, state, rngs)

    if task.microbatches == 1:
        gradient, output = piece(batch, jax.tree.map(lambda x: x[0], carry), rngs)
        output = output.replace(state=jax.tree.map(lambda x: x[None], output.state))
    else:
        # Row r goes to piece r % microbatches: every device keeps its own rows.
        pieces = jax.tree.map(lambda x: x.reshape(-1, task.microbatches, *x.shape[1:]).swapaxes(0, 1), batch)
        first = jax.eval_shape(piece, *jax.tree.map(lambda x: x[0], (pieces, carry)), rngs)
        total = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), first[0])  # many small numbers
        zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), first[1].replace(state=None))

        def add(total, xs):
            index, batch, state = xs
            total_gradient, so_far = total
            gradient, output = piece(
                batch, state, (jax.random.fold_in(rngs[0], index), jax.random.fold_in(rngs[1], index))
            )
            sums = LossOutput(
                normalizer=so_far.normalizer + output.normalizer,
                metrics=so_far.metrics + output.metrics,
                updates=add_updates(so_far.updates, output.updates),
                state=None,
            )
            return (jax.tree.map(jnp.add, total_gradient, gradient), sums), output.state

        (gradient, output), states = jax.lax.scan(add, (total, zero), (jnp.arange(task.microbatches), pieces, carry))
        output = output.replace(state=states)
    scale = 1 / jnp.maximum(output.normalizer, 1e-9)
    return jax.tree.map(lambda g: (g * scale).astype(task.gradient_dtype), gradient), output
