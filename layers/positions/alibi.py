"""Attention with linear biases: position as a penalty on distance (Press et al. 2022, ALiBi, section 3)."""

import math

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from layers.positions.diagonals import diagonals, distances


def alibi_slopes(num_heads: int) -> tuple[float, ...]:
    """Returns the penalty per position of distance, for each head.

    For a power of two, 2^(-8 h / num_heads) with h = 1, 2, ... Otherwise the slopes of the largest power of two below,
    followed by every other slope of twice that number of heads.

    >>> alibi_slopes(6) == tuple(2.0**-power for power in (2, 4, 6, 8, 1, 3))
    True
    """
    whole = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * head / whole) for head in range(1, whole + 1)]
    more = [2 ** (-4 * (2 * head - 1) / whole) for head in range(1, num_heads - whole + 1)]
    return tuple(slopes + more)


class Alibi(nn.Module):
    """Adds minus a slope per head times the distance between query and key to the scores.

    It has no weights and no maximum length: contexts may be longer than in training.
    """

    num_heads: int

    def by_distance(self, start: Int[Array, ""] | int, queries: int, keys: int) -> Float[Array, "n w"]:
        """Returns the bias in float32 by `distances(start, queries, keys)`."""
        slopes_n = jnp.array(alibi_slopes(self.num_heads), jnp.float32)
        return -slopes_n[:, None] * jnp.abs(distances(start, queries, keys)).astype(jnp.float32)

    def __call__(self, start: Int[Array, ""] | int, queries: int, keys: int) -> Float[Array, "n q t"]:
        """Returns the bias in float32 for queries at start, start + 1, ... and keys at 0, 1, ..."""
        return diagonals(self.by_distance(start, queries, keys), queries, keys)
