"""Softmax attention: multi-head, grouped-query, multi-query; packed rows; a key/value cache."""

from typing import ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from layers.dropout import dropout
from layers.errors import UsageError
from layers.initializers import Constant, Initializer
from layers.positions import rotate
from layers.specs import Specs, constrain
from layers.weight import weight


class KeyValueCache(struct.PyTreeNode):
    """What softmax attention remembers: keys and values of the first `index` positions, in slots of fixed number."""

    key_btkd: Float[Array, "b t k d"]  # rotated already, where the layer rotates
    value_btkd: Float[Array, "b t k d"]
    segment_ids_bt: Int[Array, "b t"]  # 0 marks padding
    index: Int[Array, ""]  # slots filled so far, the same for every row


class Attention(nn.Module):
    """Scaled dot-product attention (Vaswani et al. 2017, equation 1) over `num_kv_heads` shared keys and values.

    `num_kv_heads` equal to `num_heads` is multi-head attention, 1 is multi-query (Shazeer 2019), anything between is
    grouped-query (Ainslie et al. 2023). A query sees the positions before it and itself that have its segment id.
    """

    SPECS: ClassVar[tuple[str, ...]] = (
        "query_mnd",
        "key_mkd",
        "value_mkd",
        "attention_out_ndm",
        "query_bias_nd",
        "key_bias_kd",
        "value_bias_kd",
        "attention_out_bias_m",
        "query_bsnd",
        "key_bskd",
        "value_bskd",
    )

    specs: Specs
    activations: Specs
    model_dim: int
    num_heads: int
    num_kv_heads: int  # divides num_heads
    head_dim: int
    initializer: Initializer  # of query, key and value
    out_initializer: Initializer  # of the output projection
    rotary_base: float | None = None  # rotary position embedding with this base; None leaves position to others
    scale: float | None = None  # factor on the scores; None is head_dim^-1/2
    causal: bool = True
    use_bias: bool = False
    dropout_rate: float = 0.0  # on the attention probabilities
    implementation: Literal["auto", "xla", "cudnn"] = "auto"  # "auto": cuDNN flash on a GPU where the options allow
    dtype: str = "float32"  # of the computation; the softmax is float32 always
    param_dtype: str = "float32"

    def init_state(self, batch_size: int, capacity: int) -> KeyValueCache:
        """An empty cache for `capacity` positions."""
        shape = (batch_size, capacity, self.num_kv_heads, self.head_dim)
        empty = jnp.zeros(shape, self.dtype)
        return KeyValueCache(empty, empty, jnp.zeros((batch_size, capacity), jnp.int32), jnp.int32(0))

    def _project(self, x, name: str, letter: str, heads: int):
        shape = (self.model_dim, heads, self.head_dim)
        w = weight(self, f"{name}_m{letter}d", shape, init=self.initializer, role="hidden", fan_in=self.model_dim)
        y = jnp.einsum("bsm,mhd->bshd", x, w.astype(self.dtype))
        if self.use_bias:
            y += weight(self, f"{name}_bias_{letter}d", shape[1:], init=Constant(), role="bias").astype(self.dtype)
        return constrain(y, self.activations, f"{name}_bs{letter}d")

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b s m"],
        state: KeyValueCache | None = None,
        segment_ids: Int[Array, "b s"] | None = None,
        positions: Int[Array, "b s"] | None = None,
    ) -> tuple[Float[Array, "b s m"], KeyValueCache | None]:
        """Mixes along the sequence; with `state`, continues the sequence that the state remembers.

        Raises:
          UsageError: the head counts do not divide, or a state is given to attention that is not causal.
        """
        if self.num_kv_heads < 1 or self.num_heads % self.num_kv_heads:
            raise UsageError(f"num_kv_heads = {self.num_kv_heads} must divide num_heads = {self.num_heads}.")
        if state is not None and not self.causal:
            raise UsageError("Attention that is not causal has no decoding state: it sees the whole sequence at once.")
        query = self._project(x, "query", "n", self.num_heads)
        key = self._project(x, "key", "k", self.num_kv_heads)
        value = self._project(x, "value", "k", self.num_kv_heads)
        if self.rotary_base is not None:
            if positions is None:
                start = 0 if state is None else state.index
                positions = jnp.broadcast_to(start + jnp.arange(x.shape[1]), x.shape[:2])
            query, key = rotate(query, positions, self.rotary_base), rotate(key, positions, self.rotary_base)
        if state is None:
            mask = self._mask(segment_ids, segment_ids, 0, x.shape[1], x.shape[1])
        else:
            segment_ids = jnp.ones(x.shape[:2], jnp.int32) if segment_ids is None else segment_ids
            start, state = state.index, _append(state, key, value, segment_ids)
            key, value = state.key_btkd, state.value_btkd
            mask = self._mask(segment_ids, state.segment_ids_bt, start, x.shape[1], key.shape[1])
        mixed = self._attend(query, key, value, mask, plain=state is None and segment_ids is None)
        shape = (self.num_heads, self.head_dim, self.model_dim)
        fan_in = self.num_heads * self.head_dim
        w_ndm = weight(self, "attention_out_ndm", shape, init=self.out_initializer, role="hidden", fan_in=fan_in)
        y = jnp.einsum("bsnd,ndm->bsm", mixed, w_ndm.astype(self.dtype))
        if self.use_bias:
            b_m = weight(self, "attention_out_bias_m", (self.model_dim,), init=Constant(), role="bias")
            y += b_m.astype(self.dtype)
        return y, state

    def _mask(self, query_ids, key_ids, start, queries: int, keys: int) -> Bool[Array, "#b s t"]:
        """True where a query may look: at or before itself (if causal), and in its own segment."""
        mask = jnp.ones((1, queries, keys), bool)
        if self.causal:
            mask = jnp.arange(keys)[None, :] <= (start + jnp.arange(queries))[:, None]
            mask = mask[None]
        if query_ids is not None:
            mask = mask & (query_ids[:, :, None] == key_ids[:, None, :])
        return mask

    def _attend(self, query, key, value, mask, plain: bool) -> Float[Array, "b s n d"]:
        scale = self.head_dim**-0.5 if self.scale is None else self.scale
        if self._use_cudnn(plain):
            causal, mask = (self.causal, None) if plain else (False, mask[:, None])
            return jax.nn.dot_product_attention(
                query, key, value, mask=mask, scale=scale, is_causal=causal, implementation="cudnn"
            )
        batch, length, heads, dim = query.shape
        group = heads // self.num_kv_heads
        # Heads in front: one matrix product per key head, the queries of its group below one another.
        query_bkqd = (query * scale).reshape(batch, length, -1, group, dim).transpose(0, 2, 3, 1, 4)
        query_bkqd = query_bkqd.reshape(batch, -1, group * length, dim)
        key_bktd, value_bktd = key.swapaxes(1, 2), value.swapaxes(1, 2)
        scores = jnp.einsum("bkqd,bktd->bkqt", query_bkqd, key_bktd, preferred_element_type=jnp.float32)
        scores = scores.reshape(batch, -1, group, length, key.shape[1])
        scores = jnp.where(mask[:, None, None], scores, jnp.finfo(jnp.float32).min)
        probabilities = jax.nn.softmax(scores, axis=-1).astype(self.dtype)
        probabilities = dropout(self, probabilities, self.dropout_rate).reshape(batch, -1, group * length, key.shape[1])
        mixed = jnp.einsum("bkqt,bktd->bkqd", probabilities, value_bktd)
        return mixed.reshape(batch, -1, group, length, dim).transpose(0, 3, 1, 2, 4).reshape(query.shape)

    def _use_cudnn(self, plain: bool) -> bool:
        if self.implementation == "cudnn" and self.dropout_rate:
            raise UsageError(
                "implementation = 'cudnn' has no dropout on attention probabilities: set one or the other."
            )
        if self.implementation != "auto":
            return self.implementation == "cudnn"
        # A mask would be an array of all scores, which flash attention is there to avoid.
        allowed = (
            plain
            and self.dropout_rate == 0
            and self.dtype == "bfloat16"
            and self.head_dim % 8 == 0
            and self.head_dim <= 128
        )
        return allowed and jax.default_backend() == "gpu"


def _append(cache: KeyValueCache, key, value, segment_ids) -> KeyValueCache:
    """The cache with new positions written behind those it has."""
    zero = jnp.int32(0)
    at = (zero, cache.index, zero, zero)
    return KeyValueCache(
        key_btkd=jax.lax.dynamic_update_slice(cache.key_btkd, key, at),
        value_btkd=jax.lax.dynamic_update_slice(cache.value_btkd, value, at),
        segment_ids_bt=jax.lax.dynamic_update_slice(cache.segment_ids_bt, segment_ids, at[:2]),
        index=cache.index + key.shape[1],
    )
