"""The cache of softmax attention: keys and values of the positions that were read."""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int


class Slots(struct.PyTreeNode):
    """Keys and values in a fixed number of slots, in the layout that the products read."""

    key_bktd: Float[Array, "*layers b k t d"]  # already rotated, if the layer rotates
    value_bktd: Float[Array, "*layers b k t d"]
    segment_ids_bt: Int[Array, "*layers b t"]  # 0 marks padding
    index: Int[Array, "*layers"]  # positions read so far, equal for all rows


class KeyValueCache(Slots):
    """All positions in order: the first `index` slots."""

    def rewound(self, count: Int[Array, ""] | int) -> "KeyValueCache":
        """Returns the cache before its last `count` positions; what their slots hold is not read."""
        return self.replace(index=self.index - count)

    def moved(self, count_b: Int[Array, " b"]) -> "KeyValueCache":
        """Returns the cache of rows that begin with `count_b` more padding and lack as many of their last positions."""
        return KeyValueCache(
            key_bktd=moved_slots(self.key_bktd, count_b, rows=-4, slots=-2),
            value_bktd=moved_slots(self.value_bktd, count_b, rows=-4, slots=-2),
            segment_ids_bt=moved_slots(self.segment_ids_bt, count_b, rows=-2, slots=-1),
            index=self.index,
        )


class WindowCache(Slots):
    """The latest positions of a window, the last one in the last slot."""


def moved_slots(x: jax.Array, count_b: Int[Array, " b"], *, rows: int, slots: int, empty: int = 0) -> jax.Array:
    """Returns `x` with each row moved to later slots by its count; the slots before hold `empty`.

    Args:
      x: any number of dimensions.
      count_b: slots by which each row moves.
      rows: dimension of the rows, before that of the slots.
      slots: dimension of the slots.
      empty: value of the first slots.
    """
    shape = [1] * x.ndim
    shape[rows], shape[slots] = x.shape[rows], x.shape[slots]
    origin = (jnp.arange(x.shape[slots]) - count_b[:, None]).reshape(shape)
    return jnp.where(origin < 0, jnp.asarray(empty, x.dtype), jnp.take_along_axis(x, jnp.maximum(origin, 0), slots))


def slide(cache: WindowCache, key_bktd, value_bktd, segment_ids) -> tuple[Slots, WindowCache]:
    """Returns the cached and new positions in order, and the cache of the latest ones."""
    slots = cache.segment_ids_bt.shape[1]
    key = jnp.concatenate([cache.key_bktd, key_bktd], axis=2)
    value = jnp.concatenate([cache.value_bktd, value_bktd], axis=2)
    ids = jnp.concatenate([cache.segment_ids_bt, segment_ids], axis=1)
    seen = Slots(key, value, ids, cache.index + segment_ids.shape[1])
    keep = lambda x: x[:, :, x.shape[2] - slots :]
    return seen, WindowCache(keep(key), keep(value), ids[:, ids.shape[1] - slots :], seen.index)


def append(cache: KeyValueCache, key_bktd, value_bktd, segment_ids) -> KeyValueCache:
    """Returns the cache with the new positions appended."""
    return KeyValueCache(
        key_bktd=_written(cache.key_bktd, key_bktd, cache.index, dim=2),
        value_bktd=_written(cache.value_bktd, value_bktd, cache.index, dim=2),
        segment_ids_bt=_written(cache.segment_ids_bt, segment_ids, cache.index, dim=1),
        index=cache.index + segment_ids.shape[1],
    )


def _written(x: jax.Array, new: jax.Array, index: Int[Array, ""], *, dim: int) -> jax.Array:
    """Returns `x` with `new` from `index` on in a dimension, written to its own memory if it is not read later.

    XLA would write to a copy if other dimensions had one element, as those of a single row: products read the array
    without them, and the write would be computed for both shapes.
    """
    several = [number for number, size in enumerate(x.shape) if size != 1 or number == dim]
    small = lambda y: y.reshape([y.shape[number] for number in several])
    at = [index if number == dim else jnp.int32(0) for number in several]
    return jax.lax.dynamic_update_slice(small(x), small(new), at).reshape(x.shape)
