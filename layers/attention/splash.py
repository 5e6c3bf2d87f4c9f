"""Splash attention: the blockwise kernel for TPUs that JAX keeps (jax.experimental.pallas.ops.tpu.splash_attention)."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jaxtyping import Array, Float, Int

from layers.attention.blocks import Keys, Scores
from layers.attention.context_parallel import Parts
from layers.attention.implementations import SPLASH_BLOCK
from layers.collectives import on_each_device
from layers.specs import P, Specs


def attend(
    how: Scores,
    block: int,
    query: Float[Array, "b s n d"],
    keys: Keys,
    query_ids: Int[Array, "b s"] | None,
    activations: Specs,
) -> Float[Array, "b s n e"]:
    """Returns the weighted values of each query, as the dense path of layers.attention.softmax does.

    The compiler cannot split a kernel, so each device runs one over its rows and heads, with all positions of a row.

    Args:
      how: from scores to weights: softmax, with a cap, an extra logit, a window.
      block: the most queries, and keys, of a block.
      query: already multiplied by the factor on the scores; a multiple of SPLASH_BLOCK positions.
      keys: keys of shape (b, k, s, d), values (b, k, s, e), and their segments.
      query_ids: a query sees keys of its segment; None: of all.
      activations: placement of queries and values.
    """
    parts = Parts.of(activations, query)
    b, h = parts.rows, parts.heads
    keys = Keys(parts.repeated(keys.key), parts.repeated(keys.value), keys.ids)
    size = math.gcd(query.shape[1], max(block // SPLASH_BLOCK, 1) * SPLASH_BLOCK)

    def local(query: Any, keys: Keys, query_ids: Any) -> Any:
        heads = query.shape[2]
        run = _kernel(how, query.shape[1], keys.key.shape[2], heads, size)
        ids = None if query_ids is None else kernels.SegmentIds(query_ids, keys.ids)
        sinks = None if how.extra_logit is None else jnp.full((heads,), how.extra_logit, jnp.float32)
        of_row = lambda query, key, value, ids: run(query, key, value, ids, sinks)
        mixed: Any = jax.vmap(of_row)(query.swapaxes(1, 2), keys.key, keys.value, ids)
        return mixed.swapaxes(1, 2)

    of_ids = None if query_ids is None else P(b)
    specs = P(b, None, h), Keys(P(b, h), P(b, h), of_ids), of_ids
    return on_each_device(local, specs, P(b, None, h))(query, keys, query_ids)


class _Causal(masks.CausalMask):
    """A causal mask that does not compute blocks without a masked or without a visible key one by one."""

    def __getitem__(self, idx: Any) -> np.ndarray:
        return _block(self.shape, idx, None, super().__getitem__)


class _Window(masks.LocalMask):
    """A window, in the same way."""

    def __getitem__(self, idx: Any) -> np.ndarray:
        return _block(self.shape, idx, self.window_size[0], super().__getitem__)


def _block(shape: Any, idx: Any, before: int | None, compute: Any) -> np.ndarray:
    """Returns the mask of a block of queries and keys; `before`: positions before its own that a query sees."""
    (first, last, _), (nearest, farthest, _) = (part.indices(size) for part, size in zip(idx, shape, strict=True))
    last, farthest = last - 1, farthest - 1
    size = last - first + 1, farthest - nearest + 1
    if nearest > last or (before is not None and farthest < first - before):
        return _constant(size, False)
    if farthest <= first and (before is None or nearest >= last - before):
        return _constant(size, True)
    return compute(idx)


@functools.cache
def _constant(size: tuple[int, int], is_seen: bool) -> np.ndarray:
    return np.full(size, is_seen)


def _kernel(how: Scores, queries: int, keys: int, heads: int, block: int) -> kernels.SplashAttentionKernel:
    """Returns the kernel of a row."""
    shape, mask = (queries, keys), masks.FullMask((queries, keys))
    if how.causal:
        mask = _Causal(shape) if how.window is None else _Window(shape, (how.window - 1, 0), 0)
    sides = ("block_q", "block_kv", "block_q_dkv", "block_kv_dkv", "block_q_dq", "block_kv_dq")
    return kernels.make_splash_mha(
        masks.MultiHeadMask([mask] * heads),
        block_sizes=kernels.BlockSizes(**dict.fromkeys(sides, block)),
        head_shards=1,
        q_seq_shards=1,
        attn_logits_soft_cap=how.softcap,
    )
