"""Copies of the arrays that a checkpoint is written from while training continues on a CPU."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

LARGE = 1 << 20  # elements; smaller arrays are left to XLA


class Snapshots:
    """Copies of a state's large arrays on CPU devices, each in the memory of the one before.

    A checkpoint on a CPU is written from the state's own memory, and XLA does not overwrite memory that is read: the
    next update would copy all arrays donated to it, into new memory that the kernel clears first. Both have the same
    peak of memory; a snapshot's is kept until the next save.
    """

    def __init__(self) -> None:
        self._kept: list[jax.Array] = []

    def take(self, tree: Any) -> Any:
        """Returns the tree with copies of its large arrays on a CPU; overwrites the copies that it returned before."""
        leaves, structure = jax.tree.flatten(tree)
        large = [number for number, leaf in enumerate(leaves) if leaf.size >= LARGE]
        if jax.default_backend() != "cpu" or not large:
            return tree
        arrays = [leaves[number] for number in large]
        shardings = tuple(array.sharding for array in arrays)
        if self._kept:
            self._kept = _copying(shardings)(self._kept, arrays)
        else:
            self._kept = jax.device_put(arrays, list(shardings), may_alias=False)
        jax.block_until_ready(self._kept)
        for number, array in zip(large, self._kept, strict=True):
            leaves[number] = array
        return jax.tree.unflatten(structure, leaves)


@functools.lru_cache(maxsize=2)
def _copying(shardings: tuple[jax.sharding.Sharding, ...]) -> Any:
    """Returns the jitted function that copies its second list of arrays into the memory of the first."""
    copy = lambda old, new: [jnp.copy(array) for array in new]
    return jax.jit(copy, donate_argnums=0, keep_unused=True, out_shardings=list(shardings))
