"""Pointer head: raises the logits of earlier tokens by query-key scores (Peng 2021, RWKV-LM, head-QK)."""

import math
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from layers.attention.key_value_cache import moved_slots
from layers.collectives import on_each_device
from layers.positions.segments import SegmentIds, segment_numbers
from layers.specs import P, Specs, constrain, split_of
from layers.weights.initializers import Initializer
from layers.weights.products import product
from layers.weights.weight import weight


class PointerState(struct.PyTreeNode):
    """Keys and tokens read so far, in a fixed number of slots."""

    key_btc: Float[Array, "b t c"]
    tokens_bt: Int[Array, "b t"]
    segment_ids_bt: Int[Array, "b t"]  # -1 marks an empty slot
    index: Int[Array, ""]  # number of filled slots

    def extended(self, key_bsc: jax.Array, tokens_bs: jax.Array, ids_bs: jax.Array) -> "PointerState":
        """Returns the state with these positions in the next slots."""
        at = (jnp.int32(0), self.index)
        return PointerState(
            jax.lax.dynamic_update_slice(self.key_btc, key_bsc, (*at, jnp.int32(0))),
            jax.lax.dynamic_update_slice(self.tokens_bt, tokens_bs, at),
            jax.lax.dynamic_update_slice(self.segment_ids_bt, ids_bs, at),
            self.index + tokens_bs.shape[1],
        )

    def rewound(self, count: Int[Array, ""] | int) -> "PointerState":
        """Returns the state before its last `count` positions; what their slots hold is not read."""
        return self.replace(index=self.index - count)

    def moved(self, count_b: Int[Array, " b"]) -> "PointerState":
        """Returns the state of rows that begin with `count_b` more padding and lack as many of their last positions."""
        place = {"rows": -2, "slots": -1}
        return PointerState(
            moved_slots(self.key_btc, count_b, rows=-3, slots=-2),
            moved_slots(self.tokens_bt, count_b, **place),
            moved_slots(self.segment_ids_bt, count_b, **place, empty=-1),
            self.index,
        )


class PointedFeatures(struct.PyTreeNode):
    """Features, and a pointer score for each earlier token."""

    x_bsm: Float[Array, "b s m"]
    scores_bst: Float[Array, "b s t"]
    tokens_bt: Int[Array, "b t"] | None  # tokens of the slots, shared by all positions


class HeadQK(nn.Module):
    """At position i, adds c_ij = (z_i W_q) (z_j W_k) / size to the logit of x_j for each j <= i in i's segment."""

    SPECS: ClassVar[tuple[str, ...]] = ("pointer_query_mc", "pointer_key_mc")

    specs: Specs
    model_dim: int
    query_initializer: Initializer  # zero initially, so that all pointer scores start at 0
    key_initializer: Initializer
    size: int = 256  # size of a query and key
    dtype: str = "float32"  # of the matrix products' operands
    param_dtype: str = "float32"

    def init_state(self, batch_size: int, capacity: int) -> PointerState:
        """Returns an empty state for `capacity` positions."""
        empty = lambda value: jnp.full((batch_size, capacity), value, jnp.int32)
        keys = jnp.zeros((batch_size, capacity, self.size), self.dtype)
        return PointerState(keys, empty(0), empty(-1), jnp.int32(0))

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b s m"],
        tokens: Int[Array, "b s"],
        state: PointerState | None,
        segment_ids: SegmentIds,
    ) -> tuple[PointedFeatures, PointerState | None]:
        """Returns the features with scores of all tokens up to their own, and the state after them if one is given."""
        shape, common = (self.model_dim, self.size), {"role": "hidden", "fan_in": self.model_dim}
        query_mc = weight(self, "pointer_query_mc", shape, init=self.query_initializer, **common)
        key_mc = weight(self, "pointer_key_mc", shape, init=self.key_initializer, **common)
        query = product(x, query_mc.astype(self.dtype))
        key = product(x, key_mc.astype(self.dtype))
        ids = segment_numbers(segment_ids, tokens.shape)
        start = jnp.int32(0) if state is None else state.index
        after = PointerState(key, tokens, ids, start) if state is None else state.extended(key, tokens, ids)
        scores = jnp.einsum("bsc,btc->bst", query, after.key_btc, preferred_element_type=jnp.float32) / self.size
        place_s = start + jnp.arange(x.shape[1])
        seen = (jnp.arange(scores.shape[-1]) <= place_s[:, None]) & (ids[:, :, None] == after.segment_ids_bt[:, None])
        pointed = PointedFeatures(x, jnp.where(seen, scores, 0), after.tokens_bt)
        return pointed, None if state is None else after


def add_pointed(logits: Float[Array, "b s v"], features: PointedFeatures, specs: Specs) -> Float[Array, "b s v"]:
    """Returns the logits, each token's increased by the scores of all its positions.

    Each device adds to its part of the logits, if their placement divides them: XLA's partitioner (jaxlib 0.10.2) ends
    the process for this scatter if mesh axes split positions, or rows by the stages of a pipeline.
    """
    tokens_bt = features.tokens_bt
    assert tokens_bt is not None

    def one(logits_sv: jax.Array, scores_st: jax.Array, tokens_t: jax.Array) -> jax.Array:
        return logits_sv.at[:, tokens_t].add(scores_st, mode="drop")

    split = [split_of(specs, "logits_bsv", dim) for dim in range(3)]
    counts = [math.prod(axes.values()) for axes in split]
    if math.prod(counts) == 1 or any(size % count for size, count in zip(logits.shape, counts, strict=True)):
        return constrain(jax.vmap(one)(logits, features.scores_bst, tokens_bt), specs, "logits_bsv")

    def local(parts: Int[Array, "1"], logits: jax.Array, scores: jax.Array, tokens: jax.Array) -> jax.Array:
        size = logits.shape[2]
        own = tokens - parts[0] * size
        return jax.vmap(one)(logits, scores, jnp.where((own >= 0) & (own < size), own, size))

    b, s, v = (tuple(axes) or None for axes in split)
    run = on_each_device(local, (P(v), P(b, s, v), P(b, s), P(b)), P(b, s, v))
    return run(jnp.arange(counts[2]), logits, features.scores_bst, tokens_bt)
