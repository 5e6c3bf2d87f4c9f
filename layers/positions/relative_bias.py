"""Relative position bias in buckets, added to attention scores (Raffel et al. 2020, T5, section 2.1)."""

import math
from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from layers.errors import UsageError
from layers.positions.diagonals import diagonals, distances
from layers.specs import Specs
from layers.weights.initializers import Initializer
from layers.weights.weight import weight


def relative_buckets(
    distance: Int[Array, "..."],
    num_buckets: int = 32,
    max_distance: int = 128,
    bidirectional: bool = False,
    dtype: str = "float32",
) -> Int[Array, "..."]:
    """Returns the bucket of each distance `query position - key position`.

    With k buckets, distances below k/2 have one each; larger ones share the rest, spaced logarithmically up to
    `max_distance`. Unidirectional buckets treat keys after the query as distance 0; bidirectional ones reserve half of
    the buckets for keys after it. The logarithm is computed in `dtype`: bfloat16 assigns distances 76 and 112 to other
    buckets than float32.

    Raises:
      UsageError: the buckets are too few or `max_distance` is too small to space them.
    """
    if num_buckets < 4 or max_distance <= num_buckets // 2:
        raise UsageError(
            f"{num_buckets} buckets up to a distance of {max_distance} cannot be spaced logarithmically. Use at least "
            f"4 buckets, and a distance above half their number."
        )
    offset = jnp.zeros_like(distance)
    if bidirectional:
        num_buckets //= 2
        offset = jnp.where(distance < 0, num_buckets, 0)
        distance = jnp.abs(distance)
    distance = jnp.maximum(distance, 0)
    exact = num_buckets // 2
    ratio = jnp.log(jnp.maximum(distance, 1).astype(dtype) / exact) / math.log(max_distance / exact)
    spaced = exact + (ratio * (num_buckets - exact)).astype(jnp.int32)
    return offset + jnp.where(distance < exact, distance, jnp.minimum(spaced, num_buckets - 1))


class RelativeBias(nn.Module):
    """A learned bias per head and bucket of distance."""

    SPECS: ClassVar[tuple[str, ...]] = ("relative_bias_nr",)

    specs: Specs
    num_heads: int
    initializer: Initializer
    num_buckets: int = 32
    max_distance: int = 128  # distances from here on share the last bucket
    bidirectional: bool = False  # keys after the query have their own buckets
    dtype: str = "float32"  # of the logarithm that spaces the buckets
    param_dtype: str = "float32"

    @nn.compact
    def by_distance(self, start: Int[Array, ""] | int, queries: int, keys: int) -> Float[Array, "n w"]:
        """Returns the bias in float32 by `distances(start, queries, keys)`."""
        shape = (self.num_heads, self.num_buckets)
        table_nr = weight(self, "relative_bias_nr", shape, init=self.initializer, role="bias", fan_in=math.prod(shape))
        spaced = self.num_buckets, self.max_distance, self.bidirectional, self.dtype
        buckets = relative_buckets(distances(start, queries, keys), *spaced)
        return jnp.take(table_nr.astype(jnp.float32), buckets, axis=1)

    def __call__(self, start: Int[Array, ""] | int, queries: int, keys: int) -> Float[Array, "n q t"]:
        """Returns the bias in float32 for queries at start, start + 1, ... and keys at 0, 1, ..."""
        return diagonals(self.by_distance(start, queries, keys), queries, keys)
