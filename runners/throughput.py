"""Throughput: FLOPs of updates, and the model FLOPs utilization of a mesh."""

from collections.abc import Mapping
from typing import Any

from jax.sharding import Mesh

from layers.auxiliary import OVERHEAD
from layers.errors import UsageError
from layers.platform import counting_products
from runners.abstract_arrays import AbstractArrays
from runners.flops import matmul_flops
from runners.machine.chips import chip_of
from tasks.batch import empty_batch
from tasks.task import Task


def count_update_flops(task: Task, variables: Any, shape: tuple[int, int]) -> int:
    """Returns the FLOPs in the matrix products of an update with a batch of (rows, positions).

    This is three times the count of the forward pass; rematerialization is not counted, nor are products that only
    move data, such as dispatch to experts. Attention counts as dense, whichever implementation computes it.
    """
    loss = lambda variables, batch: task.loss(variables, batch)[0]
    with counting_products():
        return 3 * matmul_flops(loss, variables, empty_batch(*shape), leave_out=OVERHEAD)


class Throughput:
    """FLOPs of a task's updates, counted once per batch shape, and their rate on a mesh."""

    def __init__(self, task: Task, mesh: Mesh, abstract: AbstractArrays):
        self._task, self._mesh, self._abstract = task, mesh, abstract
        self._flops: dict[tuple[int, int], int] = {}
        self._is_countable = True

    def update_flops(self, shape: tuple[int, int]) -> int:
        """Returns the FLOPs of an update with a batch of (rows, positions), as `count_update_flops` does."""
        if shape not in self._flops:
            self._flops[shape] = count_update_flops(self._task, self._abstract.state.variables, shape)
        return self._flops[shape]

    @property
    def flops_per_token(self) -> float:
        """`update_flops` of a batch of full-length rows, per token."""
        tokens = self._abstract.sample_batch.inputs
        return self.update_flops(tokens.shape) / tokens.size

    def mfu(self, updates: Mapping[tuple[int, int], int], seconds: float) -> float | None:
        """Returns the model FLOPs utilization (Chowdhery et al. 2022, appendix B); None if the device is unknown.

        Args:
          updates: the number of updates with batches of each shape.
          seconds: the time they took.
        """
        chip = chip_of(self._mesh.devices.flat[0])
        if chip is None:
            return None
        return self._flops_of(updates) / (seconds * chip.flops * self._mesh.size)

    def flops(self, updates: Mapping[tuple[int, int], int]) -> int | None:
        """Returns the FLOPs of updates, by number of each batch shape; None if they cannot be counted."""
        if not self._is_countable:
            return None
        try:
            return self._flops_of(updates)
        except UsageError:  # an operation of a user's layer hides its work; `mfu` raises it before training
            self._is_countable = False
            return None

    def _flops_of(self, updates: Mapping[tuple[int, int], int]) -> int:
        return sum(count * self.update_flops(shape) for shape, count in updates.items())
