"""Copies of the arrays that a checkpoint is written from while training continues on a CPU."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

LARGE = 1 << 20  # elements; smaller arrays are left to XLA


class Snapshots:
    """Copies of a state's large arrays on CPU devices, each in the memory of the one before.

    A checkpoint on a CPU is written from the state's own memory, and XLA does not overwrite memory that is read: the
    next update would copy all arrays donated to it, into new memory that the kernel clears first. An update during a
    save takes as much memory in either case; a snapshot's memory is kept until the next save. Orbax writes an array
    that several devices hold from slices of its own: it is not copied.
    """

    def __init__(self) -> None:
        self._kept: list[jax.Array] = []

    def take(self, tree: Any) -> Any:
        """Returns the tree with copies of its large arrays on a CPU; overwrites the copies that it returned before."""
        if jax.default_backend() != "cpu":
            return tree
        leaves, structure = jax.tree.flatten(tree)
        large = [number for number, leaf in enumerate(leaves) if leaf.size >= LARGE and not _is_replicated(leaf)]
        if not large:
            return tree
        arrays = [leaves[number] for number in large]
        kept, self._kept = self._kept, []  # donated, also if this copy fails
        self._kept = jax.block_until_ready(_copying(tuple(array.sharding for array in arrays))(kept, arrays))
        for number, array in zip(large, self._kept, strict=True):
            leaves[number] = array
        return jax.tree.unflatten(structure, leaves)


def _is_replicated(array: jax.Array) -> bool:
    """Returns whether several devices hold the same part of an array."""
    return array.sharding.num_devices * math.prod(array.sharding.shard_shape(array.shape)) > array.size


@functools.lru_cache(maxsize=2)
def _copying(shardings: tuple[jax.sharding.Sharding, ...]) -> Any:
    """Returns the jitted function that copies its second list of arrays, into the memory of the first if it has any."""
    copy = lambda old, new: [jnp.copy(array) for array in new]
    return jax.jit(copy, donate_argnums=0, keep_unused=True, out_shardings=list(shardings))
