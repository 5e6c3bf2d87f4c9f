"""One update: gradient, optimizer, metrics, all in one pure function."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from flax.core import meta

from layers.specs import P
from layers.weight import GRADIENT
from tasks.batch import Batch
from tasks.metrics import MetricSums
from tasks.task import LossOutput, Task


class TrainState(struct.PyTreeNode):
    """All that a training run is at one step, and all that its checkpoint holds."""

    step: jax.Array  # int32: updates made
    variables: Any  # the model's variables
    optimizer: Any  # the optimizer's state
    sums: MetricSums  # metrics since the last report
    bad_step: jax.Array  # int32: first step with a loss, gradient or update that is not finite, 0 for none
    skipped: jax.Array  # int32: updates dropped for that reason


def init_state(task: Task, rng: jax.Array, batch: Batch) -> TrainState:
    """The state before the first update."""
    variables = meta.unbox(task.init(rng, batch))
    optimizer = task.optimizer.build(task.weight_table()).init(variables["params"])
    zero = jnp.int32(0)
    return TrainState(zero, variables, optimizer, task.zero_sums(), zero, zero)


def state_specs(task: Task, batch: Batch) -> TrainState:
    """Partition specs in the shape of the state."""
    table = task.weight_table()
    abstract = jax.eval_shape(lambda: init_state(task, jax.random.key(0), batch))
    replicated = jax.tree.map(lambda leaf: P(), abstract)
    return replicated.replace(
        variables=table.tree(lambda row: row.spec),
        optimizer=task.optimizer.state_specs(table, abstract.optimizer),
    )


def train_step(task: Task, state: TrainState, batch: Batch, seed: jax.Array, log_every: int) -> TrainState:
    """The state after one update on `batch`. Random numbers follow from `seed` and the step alone.

    `state.sums` starts anew behind every step that `log_every` divides.
    """
    rng = jax.random.fold_in(seed, state.step)
    gradient, output = _gradient(task, state.variables, batch, rng)
    norm = optax.global_norm(gradient)
    params = state.variables["params"]
    updates, optimizer = task.optimizer.build(task.weight_table()).update(gradient, state.optimizer, params)
    sizes = (output.metrics.objective, norm, optax.global_norm(updates))
    finite = jnp.all(jnp.isfinite(jnp.stack(sizes)))
    variables = {**output.variables, "params": optax.apply_updates(params, updates)}
    metrics = output.metrics.replace(grad_norm=norm, steps=jnp.int32(1))
    skipped = state.skipped
    if task.non_finite == "skip":
        keep = lambda new, old: jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)
        variables, optimizer = keep(variables, state.variables), keep(optimizer, state.optimizer)
        metrics = keep(metrics, task.zero_sums())
        skipped += jnp.where(finite, 0, 1)
    step = state.step + 1
    fresh = state.step % log_every == 0
    sums = jax.tree.map(lambda total, new: jnp.where(fresh, 0, total) + new, state.sums, metrics)
    bad_step = jnp.where((state.bad_step == 0) & ~finite, step, state.bad_step)
    return TrainState(step, variables, optimizer, sums, bad_step, skipped)


def _gradient(task: Task, variables: Any, batch: Batch, rng: jax.Array) -> tuple[Any, LossOutput]:
    """The gradient of the mean objective over the batch, worked through in `task.microbatches` pieces."""

    narrow = task.gradient_dtype != "float32"
    target = GRADIENT if narrow else "params"  # what the objective is differentiated by

    def objective(arrays, variables, batch, rng):
        loss, output = task.loss({**variables, target: arrays}, batch, rng=rng)
        kept = {name: value for name, value in output.variables.items() if name != GRADIENT}
        return loss, output.replace(variables=kept)

    def piece(variables, batch, rng):
        arrays = variables["params"]
        if narrow:
            arrays = jax.tree.map(lambda w: jnp.zeros(w.shape, task.gradient_dtype), arrays)
        return jax.grad(objective, has_aux=True)(arrays, variables, batch, rng)

    if task.microbatches == 1:
        gradient, output = piece(variables, batch, rng)
    else:
        # Row r goes to piece r % microbatches: every device keeps its own rows.
        pieces = jax.tree.map(lambda x: x.reshape(-1, task.microbatches, *x.shape[1:]).swapaxes(0, 1), batch)
        first = jax.eval_shape(piece, variables, jax.tree.map(lambda x: x[0], pieces), rng)
        zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), first)
        total = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), first[0])  # many small numbers

        def add(total, xs):
            index, batch = xs
            total_gradient, total_output = total
            gradient, output = piece(total_output.variables, batch, jax.random.fold_in(rng, index))
            total_output = output.replace(
                normalizer=total_output.normalizer + output.normalizer, metrics=total_output.metrics + output.metrics
            )
            return (jax.tree.map(jnp.add, total_gradient, gradient), total_output), None

        start = (total, zero[1].replace(variables=variables))
        (gradient, output), _ = jax.lax.scan(add, start, (jnp.arange(task.microbatches), pieces))
    scale = 1 / jnp.maximum(output.normalizer, 1e-9)
    return jax.tree.map(lambda g: (g * scale).astype(task.gradient_dtype), gradient), output
