"""Compiled functions of an experiment: initial state, update, evaluation, norm."""

import dataclasses
import functools
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from runners.abstract_arrays import AbstractArrays
from tasks.batch import Batch, empty_batch
from tasks.gradients import metrics_of
from tasks.programs import TrainProgram
from tasks.task import Task
from tasks.train_step import TrainState, evaluated_variables, init_state, state_of, train_step


def _options_of_one_call() -> dict[str, Any] | None:
    """Returns the compiler's options for a program that runs once: LLVM optimizes half as long, for the same bits."""
    is_chosen = "xla_backend_optimization_level" in os.environ.get("XLA_FLAGS", "")
    return None if is_chosen or jax.default_backend() != "cpu" else {"xla_backend_optimization_level": 1}


class CompiledFunctions:
    """Functions of a task's arrays, compiled for their mesh and shardings.

    Args:
      task: the task.
      program: its training.
      seed: the key from which all random numbers of a run are derived.
      abstract: shapes, dtypes and shardings.
    """

    def __init__(self, task: Task, program: TrainProgram, seed: jax.Array, abstract: AbstractArrays):
        self._task, self._program, self._seed, self._abstract = task, program, seed, abstract

    def init(self, seed: jax.Array | None = None) -> TrainState:
        """Returns the state before the first update, created with its shardings; by default from SEED."""
        return self._init(self._seed if seed is None else seed)

    @functools.cached_property
    def _init(self) -> Any:
        make = functools.partial(init_state, self._task, batch=empty_batch(self._program.input.batch_size, 1))
        return jax.jit(make, out_shardings=self._abstract.state_shardings, compiler_options=_options_of_one_call())

    def start_from(self, variables: Any) -> TrainState:
        """Returns the state before the first update with these variables, created with its shardings; donates them."""
        rows = empty_batch(self._program.input.batch_size, 1)
        start = lambda variables: state_of(self._task, variables, rows)
        return jax.jit(start, donate_argnums=0, out_shardings=self._abstract.state_shardings)(variables)

    def step(self, state: TrainState, batch: Batch, seed: jax.Array, rate: Any = None) -> TrainState:
        """Returns the state after one update (not compiled); with `rate`, at that learning rate."""
        task: Any = self._task
        if rate is not None:
            task = dataclasses.replace(task, optimizer=dataclasses.replace(task.optimizer, learning_rate=rate))
        program = self._program
        return train_step(task, state, batch, seed, program.log_every, program.input.borders)

    def trace_step(self, batch: Batch, *others: Any) -> Any:
        """Returns the traced update `(state, batch, seed) -> state`, which donates the old state.

        `batch` and the seed may be shapes with shardings. A learning rate after the seed becomes an argument too.
        """
        shardings = self._abstract.state_shardings
        jitted = jax.jit(self.step, donate_argnums=0, out_shardings=shardings, keep_unused=True)
        return jitted.trace(self._abstract.state, batch, *others)

    def lower_step(self, batch: Batch, *others: Any) -> Any:
        """Returns the lowered update, arguments as in `trace_step`."""
        return self.trace_step(batch, *others).lower()

    def compile_step(self, batch: Batch, *, takes_rate: bool = False) -> Any:
        """Returns the compiled update; with `takes_rate`, it takes the learning rate as an argument after the seed."""
        rate = (jax.ShapeDtypeStruct((), np.float32),) if takes_rate else ()
        return self.lower_step(batch, self._seed, *rate).compile()

    @functools.cached_property
    def rate_at(self) -> Any:
        """The learning rate of an update, counted from 0; one program instead of one for each operation."""
        return jax.jit(self._task.optimizer.learning_rate_at)

    def evaluated(self, state: TrainState) -> Any:
        """Returns the variables to evaluate, sample from and export; see tasks.train_step.evaluated_variables."""
        return self._evaluated(state) if self._task.optimizer.averages else state.variables

    @functools.cached_property
    def _evaluated(self) -> Any:
        shardings = self._abstract.state_shardings.variables
        return jax.jit(functools.partial(evaluated_variables, self._task), out_shardings=shardings)

    @functools.cached_property
    def norm_of(self) -> Any:
        """The jitted global norm of a tree of arrays: one program instead of one per operation."""
        return jax.jit(optax.global_norm)

    def updated(self, state: TrainState) -> Any:
        """Returns the weights that updates change: the float32 copies of weights of another dtype, if there are any."""
        table, params = self._task.weight_table(), state.variables["params"]
        return table.with_trained(self._task.optimizer.exact(table.trained(params), state.optimizer), params)

    @functools.cached_property
    def copies_of(self) -> Any:
        """The jitted copy of a tree of arrays: one program instead of one per array."""
        return jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))

    @functools.cached_property
    def changes_of(self) -> Any:
        """The jitted norms of the weights before an update, and of the update over them: float32 (arrays, 2)."""

        def changes(before: Any, after: Any) -> jax.Array:
            wide = lambda array: array.astype(jnp.float32)
            norm = lambda array: jnp.sqrt(jnp.sum(jnp.square(array)))  # on each device its part, unlike that of a row
            pairs = [(wide(old), wide(new)) for old, new in zip(*map(jax.tree.leaves, (before, after)), strict=True)]
            norms = jnp.stack([norm(old) for old, _ in pairs])
            updates = jnp.stack([norm(new - old) for old, new in pairs])
            return jnp.stack([norms, updates / jnp.maximum(norms, jnp.finfo(jnp.float32).tiny)], axis=1)

        return jax.jit(changes)

    @functools.cached_property
    def metrics_of(self) -> Any:
        """The jitted evaluation `(variables, batch) -> MetricSums`."""
        return jax.jit(lambda variables, batch: metrics_of(self._task, variables, batch))


class Updates:
    """Cache of compiled updates by batch shape."""

    def __init__(self, functions: CompiledFunctions, *, takes_rate: bool = False):
        self._functions, self._takes_rate = functions, takes_rate
        self._compiled: dict[tuple[int, ...], Any] = {}

    def __contains__(self, batch: Batch) -> bool:
        """Returns whether the update for batches of this shape is compiled."""
        return batch.inputs.shape in self._compiled

    def of(self, batch: Batch) -> Any:
        """Returns `CompiledFunctions.compile_step` for batches of this shape; compiles it on the first call."""
        if batch not in self:
            self._compiled[batch.inputs.shape] = self._functions.compile_step(batch, takes_rate=self._takes_rate)
        return self._compiled[batch.inputs.shape]
