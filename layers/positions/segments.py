"""Segments of rows: which positions belong to the same sequence, and which are padding."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

# Integers number the segments of a row from 1, and 0 is padding. Booleans are rows of one segment: True at its tokens,
# False at the padding after them. None is rows of one segment without padding.
SegmentIds = Int[Array, "b s"] | Bool[Array, "b s"] | None


def segment_numbers(segment_ids: SegmentIds, shape: tuple[int, ...]) -> Int[Array, "b s"]:
    """Returns the number of each position's segment in int32, for rows of `shape` (B, S)."""
    return jnp.ones(shape, jnp.int32) if segment_ids is None else segment_ids.astype(jnp.int32)


def hiding(segment_ids: SegmentIds, *, causal: bool) -> Int[Array, "b s"] | None:
    """Returns the numbers of segments; None if attention without them is the same at every token.

    It is if the ids only mark padding, which follows all tokens, and attention is causal.
    """
    if segment_ids is None or (causal and segment_ids.dtype == jnp.bool_):
        return None
    return segment_ids.astype(jnp.int32)


def zero_padding(x: Float[Array, "b s m"], segment_ids: SegmentIds) -> Float[Array, "b s m"]:
    """Returns `x` with zeros at padding; `x` itself if rows have none."""
    return x if segment_ids is None else x * (segment_ids != 0)[..., None].astype(x.dtype)
