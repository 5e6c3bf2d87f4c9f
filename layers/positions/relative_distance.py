"""Scores by relative distance between query and key (Dai et al. 2019, Transformer-XL)."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def shift_window(scores: Float[Array, "*batch l w"], keys: int) -> Float[Array, "*batch l t"]:
    """Converts scores by distance to scores by key, for `l` queries that follow a window of w - 1 keys.

    Query i is at key w - 1 + i. Column c of `scores` is distance w - 1 - c; the result has `keys` = w - 1 + l columns,
    and 0 where the distance is negative or above w - 1.
    """
    *batch, length, width = scores.shape
    # Rows of w + l entries, reshaped to rows of w + l - 1: row i shifts by i places to the right.
    padded = jnp.pad(scores, [(0, 0)] * len(batch) + [(0, 0), (0, length)])
    flat = padded.reshape(*batch, length * (width + length))
    return flat[..., : length * keys].reshape(*batch, length, keys)


def shift_sequence(scores: Float[Array, "*batch l w"], keys: int) -> Float[Array, "*batch l t"]:
    """Converts scores by distance to scores by key, for `l` queries that attend to `keys` = w - l + 1 keys.

    Column c of `scores` is the distance of the last query to key 0, minus c.
    """
    *batch, length, width = scores.shape
    if length == 1:
        return scores[..., :keys]
    flat = scores.reshape(*batch, length * width)
    # Row i starts length - 1 - i places later: drop the first length - 1, and reshape to rows one entry shorter.
    flat = flat[..., length - 1 : length - 1 + length * (width - 1)]
    return flat.reshape(*batch, length, width - 1)[..., :keys]
