"""Gradients of an update: accumulation over micro-batches, exchanged by the compiler or by ZeRO's collectives."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from layers.auxiliary import add_updates
from layers.collectives import all_gather, all_reduce, dim_of, gathering, reduce_scatter, restricted_to
from layers.specs import P
from layers.weights.weight import GRADIENT
from tasks.batch import Batch
from tasks.task import LossOutput, Task
from tasks.weight_table import WeightRow, WeightTable
from tasks.zero import placed_table

Rngs = tuple[jax.Array, jax.Array]


def gradient_of(task: Task, variables: Any, batch: Batch, carry: Any, rngs: Rngs, carry_specs: Any) -> Any:
    """Returns the gradient of the mean objective over the batch, from `task.gradient_accumulation` micro-batches.

    Args:
      task: provides the loss.
      variables: the model's variables.
      batch: all rows.
      carry: the state of the preceding chunk of each row, with a leading dimension of micro-batches.
      rngs: for dropout: one key per update, and one shared by all chunks of a row.
      carry_specs: partition specs of the carry.

    Returns:
      The gradient in the tree structure of the trained weights, and the LossOutput, its state like `carry`.
    """
    mesh = explicit_mesh(task)
    # The loss of a single micro-batch has the normalizer of the complete batch: its gradient needs no pass to scale it.
    is_mean = mesh is None and task.gradient_accumulation == 1
    if mesh is None:
        zeros = lambda w: jnp.zeros(w.shape, task.gradient_dtype)
        trained = task.weight_table().trained(variables["params"])
        gradient_sinks = jax.tree.map(zeros, trained) if _needs_other_dtype(task, trained) else None
        gradient, output = _sum_over_microbatches(task, variables, gradient_sinks, batch, carry, rngs, is_mean=is_mean)
    else:
        gradient, output = _sharded_gradient(task, mesh, variables, batch, carry, rngs, carry_specs)
    scale = 1.0 if is_mean else _scale(output)
    return jax.tree.map(lambda g: (g * scale).astype(task.gradient_dtype), gradient), output


def _scale(output: LossOutput) -> jax.Array:
    return jax.lax.stop_gradient(1 / jnp.maximum(output.normalizer, 1e-9))


def metrics_of(task: Task, variables: Any, batch: Batch) -> Any:
    """Returns the metric sums of a batch, without dropout."""
    mesh = explicit_mesh(task)
    if mesh is None:
        return task.loss(variables, batch)[1].metrics
    assert task.zero is not None
    axis, table = task.zero.axis, placed_table(task, mesh)

    def body(variables: Any, batch: Batch) -> Any:
        metrics = task.loss(_gathered(table, axis, variables), batch)[1].metrics
        return jax.tree.map(lambda x: jax.lax.psum(x, axis), metrics)

    return _run_sharded(body, table, axis, task, (variables, batch), (), P())


def explicit_mesh(task: Task) -> Mapping[str, int] | None:
    """Returns the mesh if the task exchanges gradients over its ZeRO axis explicitly, else None."""
    mesh = jax.sharding.get_abstract_mesh()
    if task.zero is None or mesh.empty or mesh.shape.get(task.zero.axis, 1) == 1:
        return None
    return dict(mesh.shape)


def _needs_other_dtype(task: Task, weights: Any) -> bool:
    """Returns whether gradients need a dtype other than the weights' own, so that sums do not lose small terms."""
    return task.gradient_dtype != "float32" or any(w.dtype != jnp.float32 for w in jax.tree.leaves(weights))


def _sum_over_microbatches(
    task: Task,
    variables: Any,
    gradient_sinks: Any,
    batch: Batch,
    carry: Any,
    rngs: Rngs,
    finish: Callable[[Any], Any] = lambda gradient: gradient,
    *,
    is_mean: bool = False,
) -> tuple[Any, LossOutput]:
    """Returns the gradient of the objective for `gradient_sinks` (None: trained weights), and the LossOutput.

    The objective is a sum, or with `is_mean` that of each micro-batch divided by its normalizer.
    `finish` is applied to the gradient of each micro-batch before it is added.
    """
    table = task.weight_table()

    def objective(arrays, batch, state, rngs):
        if gradient_sinks is None:
            changed = {"params": table.with_trained(arrays, variables["params"])}
        else:
            changed = {GRADIENT: arrays}
        total, output = task.loss({**variables, **changed}, batch, state, *rngs)
        return (total * _scale(output) if is_mean else total), output

    def microbatch_gradient(batch, state, rngs):
        arrays = table.trained(variables["params"]) if gradient_sinks is None else gradient_sinks
        gradient, output = jax.grad(objective, has_aux=True)(arrays, batch, state, rngs)
        return finish(gradient), output

    if task.gradient_accumulation == 1:
        gradient, output = microbatch_gradient(batch, jax.tree.map(lambda x: x[0], carry), rngs)
        return gradient, output.replace(state=jax.tree.map(lambda x: x[None], output.state))
    return _accumulated(task.gradient_accumulation, microbatch_gradient, batch, carry, rngs)


def _accumulated(
    microbatches: int, microbatch_gradient: Callable[..., tuple[Any, LossOutput]], batch: Batch, carry: Any, rngs: Rngs
) -> tuple[Any, LossOutput]:
    """Returns the float32 sum of the gradients of all micro-batches, and the sum of their LossOutputs.

    `microbatch_gradient` returns gradient and LossOutput of one micro-batch from its rows, state and keys.
    """
    # Row r belongs to micro-batch r % microbatches, so that every device keeps its own rows.
    microbatch_rows = jax.tree.map(lambda x: x.reshape(-1, microbatches, *x.shape[1:]).swapaxes(0, 1), batch)
    shapes = jax.eval_shape(microbatch_gradient, *jax.tree.map(lambda x: x[0], (microbatch_rows, carry)), rngs)
    zero_gradient = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, jnp.float32), shapes[0]
    )  # float32 keeps small terms
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes[1].replace(state=None))

    def add(so_far, xs):
        index, batch, state = xs
        sum_gradient, sums = so_far
        gradient, output = microbatch_gradient(batch, state, tuple(jax.random.fold_in(rng, index) for rng in rngs))
        sums = LossOutput(
            normalizer=sums.normalizer + output.normalizer,
            metrics=sums.metrics + output.metrics,
            updates=add_updates(sums.updates, output.updates),
            state=None,
        )
        return (jax.tree.map(jnp.add, sum_gradient, gradient), sums), output.state

    xs = (jnp.arange(microbatches), microbatch_rows, carry)
    (gradient, output), states = jax.lax.scan(add, (zero_gradient, zero), xs)
    return gradient, output.replace(state=states)


def _sharded_gradient(
    task: Task,
    mesh: Mapping[str, int],
    variables: Any,
    batch: Batch,
    carry: Any,
    rngs: Rngs,
    carry_specs: Any,
) -> tuple[Any, LossOutput]:
    """Like `_sum_over_microbatches`, but each device of the ZeRO axis sums its rows; the stage sets the exchange."""
    assert task.zero is not None
    axis, table = task.zero.axis, placed_table(task, mesh)
    rows = table.params

    def body(variables, batch, carry, rngs, number):
        # Each device draws its own random numbers.
        rngs = (jax.random.fold_in(rngs[0], number[0]), jax.random.fold_in(rngs[1], number[0]))
        gradient_sinks = jax.tree.map(lambda row: _gradient_sink(row, axis, mesh[axis], task.gradient_dtype), rows)
        finish = lambda gradient: _reduce_scattered(rows, gradient, axis, "gradient_spec", only_unstacked=True)
        arguments = (gradient_sinks, batch, carry, rngs, finish)
        gradient, output = _sum_over_microbatches(task, _gathered(table, axis, variables), *arguments)
        gradient = _reduce_scattered(rows, gradient, axis, "slot_spec")
        reduced = lambda row, g: all_reduce(g.astype(jnp.float32), axis, row.gradient_spec)
        is_sharded = lambda row: dim_of(row.slot_spec, axis) is not None
        gradient = jax.tree.map(lambda row, g: g if is_sharded(row) else reduced(row, g), rows, gradient)
        sums = jax.tree.map(lambda x: jax.lax.psum(x, axis), (output.normalizer, output.metrics))
        updates = _merged_updates(output.updates, axis, mesh[axis])
        output = output.replace(normalizer=sums[0], metrics=sums[1], updates=updates)
        return gradient, output

    local_specs = lambda specs: jax.tree.map(lambda spec: restricted_to(spec, axis), specs)
    replicated: Any = P()
    outputs = LossOutput(replicated, metrics=replicated, updates=replicated, state=local_specs(carry_specs))
    gradient_specs = jax.tree.map(lambda row: restricted_to(row.slot_spec, axis), rows)
    others = ((carry, local_specs(carry_specs)), (rngs, P()), (jnp.arange(mesh[axis]), P(axis)))
    return _run_sharded(body, table, axis, task, (variables, batch), others, (gradient_specs, outputs))


def _gradient_sink(row: WeightRow, axis: str, parts: int, dtype: str) -> jax.Array:
    """Returns zeros in the shape of the gradient that the backward pass produces on one of `parts` devices."""
    # Gradients of stacked layers are scattered in the backward pass (layers.weights.weight), others after each
    # micro-batch.
    dim = dim_of(row.gradient_spec, axis) if row.stacked or row.is_local else None
    shape = [size // parts if at == dim else size for at, size in enumerate(row.shape)]
    return jnp.zeros(shape, dtype)


def _reduce_scattered(rows: Any, gradient: Any, axis: str, target: str, *, only_unstacked: bool = False) -> Any:
    """Reduce-scatters gradients that are still complete and whose `target` spec has the axis; `rows` is their table."""

    def one(row: WeightRow, g: jax.Array) -> jax.Array:
        dim = dim_of(getattr(row, target), axis)
        if dim is None or g.shape[dim] != row.shape[dim] or (only_unstacked and row.stacked):
            return g
        return reduce_scatter(g.astype(jnp.float32), axis, dim, row.gradient_spec)

    return jax.tree.map(one, rows, gradient)


def _run_sharded(
    body: Any, table: WeightTable, axis: str, task: Task, arguments: tuple[Any, Batch], others: Any, out_specs: Any
) -> Any:
    """Runs `body` per shard of the axis, on its shard of weights and batch; `others` has (argument, spec) pairs."""
    weight_specs = table.tree(lambda row: restricted_to(row.spec, axis))
    batch_spec = restricted_to(task.batch_placement["tokens_bs"], axis)
    specs = (weight_specs, batch_spec, *(spec for _, spec in others))
    values = (*arguments, *(value for value, _ in others))
    gathered_rows = (row for row in table if row.stacked and not row.is_local)
    with gathering(any(dim_of(row.spec, axis) is not None for row in gathered_rows)):
        return jax.shard_map(body, in_specs=specs, out_specs=out_specs, axis_names={axis}, check_vma=False)(*values)


def _gathered(table: WeightTable, axis: str, variables: Any) -> Any:
    """Returns the variables with weights outside stacks gathered; layers gather stacked weights one by one at use.

    Weights of experts stay sharded.
    """

    def one(row, value):
        dim = dim_of(row.spec, axis)
        return value if dim is None or row.stacked or row.is_local else all_gather(value, axis, dim, row.spec)

    return jax.tree.map(one, table.tree(lambda row: row), variables)


def _merged_updates(updates: Any, axis: str, parts: int) -> Any:
    """Merges the updates of all devices along the axis."""
    every = jax.tree.map(lambda x: jax.lax.all_gather(x, axis), updates)
    return functools.reduce(add_updates, (jax.tree.map(lambda x, i=i: x[i], every) for i in range(parts)))
