"""Checksums of arrays on devices: independent of the sharding, and different after any flipped bit."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from layers.specs import P

UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}
# Elements of a large array that a CPU adds at a time: they stay in its cache. XLA would write the terms of a sum of
# integers to memory before it adds them, which takes three times as long. Small arrays compile faster without blocks.
BLOCK, LARGE = 1 << 16, 1 << 20


def checksums(tree: Any) -> list[int]:
    """Returns a number below 2^32 for each array, computed on its devices; called by all processes.

    It is the sum of the elements' bits, each times an odd number that depends on its index, modulo 2^32. One changed
    element always changes it; swapped elements and lost blocks do so except in one case in billions.
    """
    arrays = jax.tree.leaves(tree)
    return [int(value) for value in jax.device_get(_sums(tuple(map(_split, arrays)))(arrays))]


def checksums_by_device(tree: Any, mesh: jax.sharding.Mesh) -> dict[str, list[int]]:
    """Returns the checksums of this process's shards of all arrays, by its devices; called by all processes.

    No device reads the shards of another one. `tree` has arrays on the mesh.
    """
    arrays = jax.tree.leaves(tree)
    sums = _sums_by_device(mesh, tuple(array.sharding.spec for array in arrays))(arrays)
    return {str(shard.device): np.asarray(shard.data)[0].tolist() for shard in sums.addressable_shards}


@functools.lru_cache(maxsize=8)
def _sums_by_device(mesh: jax.sharding.Mesh, specs: tuple[P, ...]) -> Any:
    """Returns the jitted function from a list of arrays with these specs to checksums (devices, arrays)."""
    body = lambda arrays: jnp.stack([_checksum(array) for array in arrays])[None]
    out_specs = P(mesh.axis_names)
    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(list(specs),), out_specs=out_specs, check_vma=False))


def _split(array: jax.Array) -> jax.sharding.NamedSharding | None:
    """Returns the sharding of an array that several devices share; None if each has all of it, or if it has no mesh."""
    sharding: Any = array.sharding
    is_split = isinstance(sharding, jax.sharding.NamedSharding) and not sharding.is_fully_replicated
    return sharding if is_split else None


@functools.lru_cache(maxsize=8)
def _sums(shardings: tuple[jax.sharding.NamedSharding | None, ...]) -> Any:
    """Returns the jitted function from a list of arrays with these shardings to their checksums."""

    def sums(arrays: list[jax.Array]) -> list[jax.Array]:
        pairs = zip(arrays, shardings, strict=True)
        return [_checksum(x) if sharding is None else _checksum_of_shards(x, sharding) for x, sharding in pairs]

    return jax.jit(sums)


def _checksum_of_shards(x: jax.Array, sharding: jax.sharding.NamedSharding) -> jax.Array:
    """Adds the sums of all shards, each computed on its device."""
    mesh, shape = sharding.mesh, x.shape
    entries = [entry if isinstance(entry, tuple) else (entry,) for entry in sharding.spec]
    axes = [tuple(name for name in entry if name is not None) for entry in entries]
    used = tuple(name for names in axes for name in names)

    def body(shard: jax.Array) -> jax.Array:
        first: list[Any] = [0] * shard.ndim
        for axis, names in enumerate(axes):
            if names:
                first[axis] = lax.axis_index(names) * shard.shape[axis]
        return lax.psum(_checksum(shard, first, shape), used)

    return jax.shard_map(body, mesh=mesh, in_specs=sharding.spec, out_specs=P(), check_vma=False)(x)


def _checksum(x: jax.Array, first: Sequence[Any] | None = None, shape: Sequence[int] | None = None) -> jax.Array:
    """Returns the sum of a part of an array: `first` is the index of its first element, `shape` that of the array."""
    first, shape = first or [0] * x.ndim, shape or x.shape
    if x.size <= LARGE or jax.default_backend() != "cpu":
        return jnp.sum(_terms(x, first, shape), dtype=jnp.uint32)
    block = _block_shape(x.shape)
    counts = [size // part for size, part in zip(x.shape, block, strict=True)]

    def add(number: Any, sums: jax.Array) -> jax.Array:
        starts = [index * part for index, part in zip(jnp.unravel_index(number, counts), block, strict=True)]
        places = [begin + start for begin, start in zip(first, starts, strict=True)]
        return sums + _terms(lax.dynamic_slice(x, starts, block), places, shape)

    total = jnp.sum(lax.fori_loop(0, math.prod(counts), add, jnp.zeros(block, jnp.uint32)), dtype=jnp.uint32)
    for axis, count in enumerate(counts):  # at most one axis has elements after the last block
        if (begin := count * block[axis]) < x.shape[axis]:
            places = [*first[:axis], first[axis] + begin, *first[axis + 1 :]]
            total += _checksum(lax.slice_in_dim(x, begin, None, axis=axis), places, shape)
    return total


def _block_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape of the largest parts of up to BLOCK elements that follow each other in memory."""
    block, left = list(shape), BLOCK
    for axis in reversed(range(len(shape))):
        block[axis] = max(1, min(shape[axis], left))
        left //= shape[axis]
    return tuple(block)


def _terms(x: jax.Array, first: Sequence[Any], shape: Sequence[int]) -> jax.Array:
    """Returns the products of the bits of elements and odd numbers that depend on their index in the array."""
    bits = x if x.dtype == jnp.bool_ else lax.bitcast_convert_type(x, UNSIGNED[x.dtype.itemsize])
    place, stride = jnp.zeros(x.shape, jnp.uint32), 1
    for axis in reversed(range(x.ndim)):
        index = lax.broadcasted_iota(jnp.uint32, x.shape, axis) + jnp.asarray(first[axis]).astype(jnp.uint32)
        place += index * jnp.uint32(stride % 2**32)
        stride *= shape[axis]
    odd = (place * jnp.uint32(2654435761)) ^ (place >> 15) | jnp.uint32(1)
    return bits.astype(jnp.uint32) * odd
