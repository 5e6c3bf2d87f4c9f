"""Checksums of arrays on devices: independent of the sharding, and different after any flipped bit."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from layers.specs import P

UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}


def checksums(tree: Any) -> list[int]:
    """Returns a number below 2^32 for each array, computed on its devices; called by all processes.

    It is the sum of the elements' bits, each times an odd number that depends on its index, modulo 2^32. One changed
    element always changes it; swapped elements and lost blocks do so except in one case in billions.
    """
    return [int(value) for value in jax.device_get(_sums(jax.tree.leaves(tree)))]


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


@jax.jit
def _sums(arrays: list[jax.Array]) -> list[jax.Array]:
    return [_checksum(array) for array in arrays]


def _checksum(x: jax.Array) -> jax.Array:
    bits = x if x.dtype == jnp.bool_ else lax.bitcast_convert_type(x, UNSIGNED[x.dtype.itemsize])
    place, stride = jnp.zeros(x.shape, jnp.uint32), 1
    for axis in reversed(range(x.ndim)):
        place += lax.broadcasted_iota(jnp.uint32, x.shape, axis) * jnp.uint32(stride % 2**32)
        stride *= x.shape[axis]
    odd = (place * jnp.uint32(2654435761)) ^ (place >> 15) | jnp.uint32(1)
    return jnp.sum(bits.astype(jnp.uint32) * odd, dtype=jnp.uint32)
