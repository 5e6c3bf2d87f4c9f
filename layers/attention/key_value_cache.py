"""The cache of softmax attention: keys and values of the positions that were read."""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int


class KeyValueCache(struct.PyTreeNode):
    """Cache of softmax attention: keys and values in a fixed number of slots, in the layout that the products read.

    It holds the first `index` positions in order; with a window, the latest positions, the last one in the last slot.
    """

    key_bktd: Float[Array, "b k t d"]  # already rotated, if the layer rotates
    value_bktd: Float[Array, "b k t d"]
    segment_ids_bt: Int[Array, "b t"]  # 0 marks padding
    index: Int[Array, ""]  # positions read so far, equal for all rows


def slide(cache: KeyValueCache, key_bktd, value_bktd, segment_ids) -> tuple[KeyValueCache, KeyValueCache]:
    """Returns the cached and new positions in order, and the cache of the latest ones."""
    slots = cache.segment_ids_bt.shape[1]
    key = jnp.concatenate([cache.key_bktd, key_bktd], axis=2)
    value = jnp.concatenate([cache.value_bktd, value_bktd], axis=2)
    ids = jnp.concatenate([cache.segment_ids_bt, segment_ids], axis=1)
    seen = KeyValueCache(key, value, ids, cache.index + segment_ids.shape[1])
    keep = lambda x: x[:, :, x.shape[2] - slots :]
    return seen, KeyValueCache(keep(key), keep(value), ids[:, ids.shape[1] - slots :], seen.index)


def append(cache: KeyValueCache, key_bktd, value_bktd, segment_ids) -> KeyValueCache:
    """Returns the cache with the new positions appended."""
    zero = jnp.int32(0)
    at = (zero, zero, cache.index, zero)
    return KeyValueCache(
        key_bktd=jax.lax.dynamic_update_slice(cache.key_bktd, key_bktd, at),
        value_bktd=jax.lax.dynamic_update_slice(cache.value_bktd, value_bktd, at),
        segment_ids_bt=jax.lax.dynamic_update_slice(cache.segment_ids_bt, segment_ids, (zero, cache.index)),
        index=cache.index + segment_ids.shape[1],
    )
