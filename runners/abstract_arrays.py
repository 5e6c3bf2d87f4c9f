"""Shapes, dtypes and shardings of an experiment's arrays, for compilation and restoring without values."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import NamedSharding

from layers.specs import P
from tasks.batch import Batch, empty_batch
from tasks.inputs.indexed import IndexedInput
from tasks.task import Task
from tasks.train_step import TrainState, abstract_state, state_specs
from tasks.zero import placed_table


class AbstractArrays:
    """Shapes, dtypes and shardings of the arrays of a train step.

    Args:
      task: the task.
      source: the training input.
      batch_sharding: the sharding of its batches, on the mesh of the experiment.
      mesh_shape: the axis sizes of that mesh.
    """

    def __init__(self, task: Task, source: IndexedInput, batch_sharding: NamedSharding, mesh_shape: Mapping[str, int]):
        self._task, self._source = task, source
        self._batch_sharding, self._mesh_shape = batch_sharding, mesh_shape

    @property
    def sample_batch(self) -> Batch:
        """A batch of zeros in the shape of the training input's full-length rows."""
        return empty_batch(self._source.batch_size, self._source.seq_len)

    @functools.cached_property
    def state_shardings(self) -> TrainState:
        """The sharding of each array of the train state."""
        table = placed_table(self._task, self._mesh_shape)
        specs = state_specs(self._task, table, self._shapes, self.sample_batch)
        return jax.tree.map(lambda spec: NamedSharding(self._batch_sharding.mesh, spec), specs)

    @functools.cached_property
    def state(self) -> TrainState:
        """The train state."""
        place = lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
        return jax.tree.map(place, self._shapes, self.state_shardings)

    @functools.cached_property
    def _shapes(self) -> TrainState:
        return abstract_state(self._task, self.sample_batch)

    @property
    def batch(self) -> Batch:
        """The training input's batches of full-length rows; reads no data if the input knows its fields."""
        source = self._source
        return self.like(empty_batch(source.batch_size, source.seq_len, source.fields), self._batch_sharding)

    @property
    def seed(self) -> Any:
        """The seed."""
        return self.like(jax.eval_shape(lambda: jax.random.key(0)))

    def like(self, tree: Any, sharding: NamedSharding | None = None) -> Any:
        """Returns a tree like `tree` of shapes, dtypes and a sharding (None: a copy on every device)."""
        sharding = NamedSharding(self._batch_sharding.mesh, P()) if sharding is None else sharding
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)
