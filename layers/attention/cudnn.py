"""cuDNN's flash attention on GPUs, through JAX."""

from typing import Any

import jax
import jax.numpy as jnp
from jax._src.cudnn import fused_attention_stablehlo as fused  # jax.nn does not take segments
from jaxtyping import Array, Bool, Float, Int

from layers.attention.blocks import Keys, Scores
from layers.attention.context_parallel import Parts
from layers.collectives import on_each_device
from layers.specs import P, Specs


def attend(
    how: Scores, scale: float, query: Float[Array, "b s n d"], keys: Keys, mask: Bool[Array, "b s t"] | None
) -> Float[Array, "b s n e"]:
    """Returns the weighted values of each query, as the dense path of layers.attention.softmax does.

    Args:
      how: from scores to weights: softmax, with a window.
      scale: factor on the scores.
      query: queries, 16-bit.
      keys: keys of shape (b, k, t, d) and values (b, k, t, e).
      mask: True at keys that a query sees, in place of causality and the window.
    """
    is_causal = how.causal and mask is None
    return jax.nn.dot_product_attention(
        query,
        keys.key.swapaxes(1, 2),
        keys.value.swapaxes(1, 2),
        mask=None if mask is None else mask[:, None],
        scale=scale,
        is_causal=is_causal,
        local_window_size=None if how.window is None or not is_causal else (how.window - 1, 0),
        implementation="cudnn",
    )


def attend_packed(
    how: Scores,
    scale: float,
    query: Float[Array, "b s n d"],
    keys: Keys,
    segment_ids: Int[Array, "b s"],
    max_segments: int,
    activations: Specs,
) -> Float[Array, "b s n e"]:
    """Returns the weighted values of each query, which sees keys of its segment; the kernel reads where these begin.

    A segment is a run of equal ids. The result of a row of more than `max_segments` is NaN, because the kernel leaves
    the others out. Heads of keys are repeated for each query head: the offsets of JAX are in elements of queries. Each
    device runs a kernel over its rows and heads, because offsets are those of its rows.

    Args:
      how: from scores to weights: softmax.
      scale: factor on the scores.
      query: queries, 16-bit.
      keys: keys of shape (b, k, s, d) and values (b, k, s, e).
      segment_ids: that of each position, also of padding.
      max_segments: number of entries of the table of lengths.
      activations: placement of queries.
    """
    parts = Parts.of(activations, query)
    b, h = parts.rows, parts.heads
    keys = Keys(parts.repeated(keys.key), parts.repeated(keys.value))
    mask_type = fused.MaskType.PADDING_CAUSAL if how.causal else fused.MaskType.PADDING

    def local(query: Any, keys: Keys, segment_ids: Any) -> Any:
        lengths, starts, count = runs(segment_ids, max_segments)
        times = query.shape[2] // keys.key.shape[1]
        key, value = (jnp.repeat(x.swapaxes(1, 2), times, axis=2) for x in (keys.key, keys.value))
        tables: Any = {"q_seqlen": lengths, "kv_seqlen": lengths, "q_offsets": starts, "kv_offsets": starts}
        mixed: Any = fused.dot_product_attention(query, key, value, **tables, scale=scale, mask_type=mask_type)
        return jnp.where((count > max_segments)[:, None, None, None], jnp.nan, mixed)

    specs = P(b, None, h), Keys(P(b, h), P(b, h)), P(b)
    return on_each_device(local, specs, P(b, None, h))(query, keys, segment_ids)


def runs(ids: Int[Array, "b s"], most: int) -> tuple[Int[Array, "b most"], Int[Array, "b most+1"], Int[Array, " b"]]:
    """Returns length and first position of each run of equal ids, and the number of runs.

    After the last run, and after `most` of them, length and position are -1.
    """
    begins = jnp.pad(ids[:, 1:] != ids[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    number = jnp.cumsum(begins, axis=1, dtype=jnp.int32)
    count = number[:, -1]
    places = jnp.arange(most + 1)
    starts = jnp.sum(number[:, :, None] <= places, axis=1, dtype=jnp.int32)  # the row's length after the last run
    is_run = places < jnp.minimum(count, most)[:, None]
    return jnp.where(is_run[:, :most], jnp.diff(starts, axis=1), -1), jnp.where(is_run, starts, -1), count
