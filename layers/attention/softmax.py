"""Softmax attention: multi-head, grouped-query, multi-query; packed rows; a key/value cache."""

import math
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from layers.attention import cudnn
from layers.attention.blocks import Keys, Others, Scores
from layers.attention.blockwise import attend, grouped, ungrouped
from layers.attention.context_parallel import attend_split, by_heads, by_positions, exchange_of, heads_of, sequence_axis
from layers.attention.exchanges import Alone
from layers.attention.implementations import Call, ContextParallel, Decision, Implementation, choose
from layers.attention.key_value_cache import KeyValueCache, WindowCache, append, slide
from layers.attention.score_functions import masked, value_weights
from layers.auxiliary import WATCHED, place, watch
from layers.dropout import dropout
from layers.errors import UsageError
from layers.norm import gain, rms_normalize
from layers.positions.embeddings import rotate
from layers.positions.rotary_scaling import RotaryScaling
from layers.positions.segments import SegmentIds, hiding, segment_numbers
from layers.specs import Specs, constrain, split_of
from layers.weights.initializers import Constant, Initializer
from layers.weights.products import product, products_of
from layers.weights.weight import weight

QKNorm = Literal["none", "rms", "rms_all_heads", "l2"]


class Attention(nn.Module):
    """Scaled dot-product attention (Vaswani et al. 2017, equation 1) over `num_kv_heads` shared keys and values.

    `num_kv_heads` equal to `num_heads` is multi-head attention, 1 is multi-query (Shazeer 2019), values between them
    are grouped-query (Ainslie et al. 2023). A query attends to itself and to earlier positions with its segment id.
    """

    SPECS: ClassVar[tuple[str, ...]] = (
        "query_mnd",
        "key_mkd",
        "value_mkd",
        "attention_out_ndm",
        "query_ma",
        "key_ma",
        "value_ma",
        "attention_out_am",
        "query_bias_nd",
        "key_bias_kd",
        "value_bias_kd",
        "attention_out_bias_m",
        "query_scale_d",
        "key_scale_d",
        "query_scale_nd",
        "key_scale_kd",
        "attention_gain_n",
        "query_bsnd",
        "key_bskd",
        "value_bskd",
        "mixed_bsnd",
    )

    specs: Specs
    activations: Specs
    model_dim: int
    num_heads: int
    num_kv_heads: int  # divides num_heads
    head_dim: int
    initializer: Initializer  # of query, key and value
    out_initializer: Initializer  # of the output projection
    query_initializer: Initializer | None = None  # of the query; None is `initializer`
    rotary_base: float | None = None  # base of the rotary position embedding; None: no rotation
    rotary_share: float = 1.0  # share of a head's channels that rotate
    rotary_scaling: RotaryScaling | None = None  # change of rotary frequencies; None for no change
    scale: float | None = None  # factor on the scores; None is head_dim^-1/2
    window: int | None = None  # positions that a query attends to, its own the last; None is all (Beltagy et al. 2020)
    softcap: float | None = None  # c: scores become c tanh(scores / c), before any bias (Gemma Team 2024, section 2)
    relative_bias: nn.Module | None = None  # (start, queries, keys) -> bias (n, q, t), added to the scores
    extra_logit: float | None = None  # logit of an additional key with value 0, so that a head can attend to nothing
    score_function: str = "softmax"  # how scores become weights: a name in layers.attention.score_functions
    score_length: int | None = None  # divisor of score functions without a sum over keys
    # Norm of queries and keys before rotation: "rms" of each head (Dehghani et al. 2023), "rms_all_heads" of all heads
    # together (Team OLMo 2025, section 3.3), or "l2" of each head with a learned factor per head, initially 1, instead
    # of `scale` (Henry et al. 2020).
    qk_norm: QKNorm = "none"
    qk_scale: bool = False  # learned factors per channel after the RMS norm; those of "rms" are shared by all heads
    one_plus_scale: bool = False  # those factors are 1 + a weight, which is initially 0
    epsilon: float = 1e-6  # of that norm, and of score functions that divide by a sum
    merged_heads: bool = False  # weights have one dimension `a` of num_heads * head_dim, sharded as one
    padded_heads: int | None = None  # pads the heads of activations to this number, so that a mesh axis divides them
    causal: bool = True
    use_bias: bool = False  # of query, key and value
    use_out_bias: bool | None = None  # of the output projection; None is use_bias
    dropout_rate: float = 0.0  # on the attention probabilities
    joint_projections: bool = False  # one product for query, key and value, if their shapes are equal
    max_segments: int | None = None  # most runs of equal segment ids in a row, for cuDNN; None: unknown
    implementation: Implementation = "auto"  # see layers.attention.implementations
    block_size: int = 512  # queries, and keys, of a block of the blockwise implementation
    context_parallel: ContextParallel = "auto"  # exchange between devices that share a sequence: see implementations
    dtype: str = "float32"  # of the computation; the softmax is always float32
    param_dtype: str = "float32"

    def init_state(self, batch_size: int, capacity: int) -> KeyValueCache | WindowCache:
        """Returns an empty cache for `capacity` positions, or for the positions of a window."""
        capacity = capacity if self.window is None else self.window - 1
        shape = (batch_size, capacity, self._kv_slots, self.head_dim)
        key, value = (
            constrain(jnp.zeros(shape, self.dtype), self.activations, row) for row in ("key_bskd", "value_bskd")
        )
        ids = jnp.zeros((batch_size, capacity), jnp.int32)
        kind = KeyValueCache if self.window is None else WindowCache
        return kind(key.swapaxes(1, 2), value.swapaxes(1, 2), ids, jnp.int32(0))

    def _projections(self, x) -> list[Float[Array, "b s h d"]]:
        """Returns query, key and value."""
        kinds = (("query", "n", self.num_heads), ("key", "k", self.num_kv_heads), ("value", "k", self.num_kv_heads))
        products = products_of(
            x, [self._projection(*kind).astype(self.dtype) for kind in kinds], self.joint_projections
        )
        return [self._finished(y, *kind) for y, kind in zip(products, kinds, strict=True)]

    def _projection(self, name: str, letter: str, heads: int) -> jax.Array:
        initializer = self.query_initializer if name == "query" else None
        init: Any = {"init": initializer or self.initializer, "role": "hidden", "fan_in": self.model_dim}
        if self.merged_heads:
            return weight(self, f"{name}_ma", (self.model_dim, heads * self.head_dim), **init)
        return weight(self, f"{name}_m{letter}d", (self.model_dim, heads, self.head_dim), **init)

    def _finished(self, y, name: str, letter: str, heads: int):
        y = y.reshape(*y.shape[:2], heads, self.head_dim)
        if self.use_bias:
            shape = (heads, self.head_dim)
            y += weight(self, f"{name}_bias_{letter}d", shape, init=Constant(), role="bias").astype(self.dtype)
        slots = self._slots if letter == "n" else self._kv_slots
        y = jnp.pad(y, ((0, 0), (0, 0), (0, slots - heads), (0, 0)))
        return place(self, f"{name}_bs{letter}d", y)

    def _normed(self, x, name: str):
        if self.qk_norm == "none":
            return x
        if self.qk_norm == "l2":
            y = x.astype(jnp.float32)
            squares = jnp.sum(jnp.square(y), axis=-1, keepdims=True)
            y = y / jnp.sqrt(jnp.maximum(squares, self.epsilon**2))  # has a derivative at 0, where QUERY_INIT = zero is
            if name == "query":
                gain_n = weight(self, "attention_gain_n", (self.num_heads,), init=Constant(value=1.0), role="scale")
                y = y * jnp.pad(gain_n, (0, y.shape[2] - self.num_heads))[:, None]
            return y.astype(x.dtype)
        if self.qk_norm == "rms_all_heads":
            return self._normed_together(x, name)
        y = rms_normalize(x, self.epsilon)
        if self.qk_scale:
            y = y * gain(self, f"{name}_scale_d", (self.head_dim,), one_plus=self.one_plus_scale)
        return y.astype(x.dtype)

    def _normed_together(self, x, name: str):
        letter, heads = ("n", self.num_heads) if name == "query" else ("k", self.num_kv_heads)
        y = x[:, :, :heads].reshape(*x.shape[:2], -1)
        y = rms_normalize(y, self.epsilon).reshape(*x.shape[:2], heads, self.head_dim)
        if self.qk_scale:
            y = y * gain(
                self, f"{name}_scale_{letter}d", (heads, self.head_dim), one_plus=self.one_plus_scale, fan_in=1
            )
        return jnp.pad(y, ((0, 0), (0, 0), (0, x.shape[2] - heads), (0, 0))).astype(x.dtype)

    @property
    def _slots(self) -> int:
        return self.num_heads if self.padded_heads is None else self.padded_heads

    @property
    def _kv_slots(self) -> int:
        return self._slots if self.num_kv_heads == self.num_heads else self.num_kv_heads

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b s m"],
        state: KeyValueCache | WindowCache | None = None,
        segment_ids: SegmentIds = None,
        positions: Int[Array, "b s"] | None = None,
    ) -> tuple[Float[Array, "b s m"], KeyValueCache | WindowCache | None]:
        """Mixes along the sequence; with `state`, continues the sequence that the state holds.

        Raises:
          UsageError: the head counts do not divide, or non-causal attention is given a state or window.
        """
        self._require_valid(has_state=state is not None)
        query, key, value = self._projections(x)
        query, key = self._normed(query, "query"), self._normed(key, "key")
        start: Any = 0 if state is None else state.index
        if self.rotary_base is not None:
            if positions is None:
                positions = jnp.broadcast_to(start + jnp.arange(x.shape[1]), x.shape[:2])
            turn: Any = {"base": self.rotary_base, "share": self.rotary_share, "scaling": self.rotary_scaling}
            query = watch(self, "query_rotated", rotate(query, positions, **turn))
            key = watch(self, "key_rotated", rotate(key, positions, **turn))
        key, value = key.swapaxes(1, 2), value.swapaxes(1, 2)
        if state is None:
            segment_ids = key_ids = hiding(segment_ids, causal=self.causal)
        else:
            segment_ids = segment_numbers(segment_ids, x.shape[:2])
            if isinstance(state, KeyValueCache):
                seen = state = append(state, key, value, segment_ids)
            else:
                seen, state = slide(state, key, value, segment_ids)
            key, value, key_ids = seen.key_bktd, seen.value_bktd, seen.segment_ids_bt
            start = start if self.window is None else self.window - 1  # position of the first query among the keys
        attended = (query, key, value, segment_ids, key_ids, start)
        path = None if self.is_initializing() else "/".join(self.path)
        decision = choose(self.implementation, self._call(x.shape[1], key, state, key_ids), path, self.context_parallel)
        if decision.exchange == "all_to_all":
            attended = (*by_heads(self.activations, query, key, value), segment_ids, key_ids, start)
        match decision.implementation:
            case "cudnn" | "splash":
                mixed = self._attend_by_kernel(decision, *attended)
            case "blockwise":
                mixed = self._attend_blockwise(decision, *attended)
            case _:
                mixed = self._attend_in_parts(decision.query_parts, *attended)
        if decision.exchange == "all_to_all":
            mixed = by_positions(self.activations, mixed)
        return self._output(place(self, "mixed_bsnd", mixed), has_state=state is not None), state

    def _call(self, queries: int, key_bktd: jax.Array, state: Any, key_ids: Any) -> Call:
        bias = "none"
        if self.relative_bias is not None:
            bias = "by_distance" if hasattr(self.relative_bias, "by_distance") else "matrix"
        _, parts = sequence_axis(self.activations, queries)
        split = parts * math.prod(split_of(self.activations, "value_bskd", 2).values())
        return Call(
            queries=queries,
            keys=key_bktd.shape[2],
            head_dim=self.head_dim,
            dtype=self.dtype,
            has_state=state is not None,
            has_segments=state is None and key_ids is not None,
            dropout_rate=self.dropout_rate,
            window=self.window,
            softcap=self.softcap,
            bias=bias,
            extra_logit=self.extra_logit,
            score_function=self.score_function,
            max_segments=self.max_segments,
            is_watched=self.is_mutable_collection(WATCHED) and not self.is_initializing(),
            causal=self.causal,
            parts=parts,
            heads_divide=not any(heads % split for heads in (self._slots, self._kv_slots)),
        )

    def _require_valid(self, *, has_state: bool) -> None:
        """Raises a UsageError for fields that contradict each other, or the decoding state."""
        check_heads(self.num_heads, self.num_kv_heads)
        if self._slots < self.num_heads or (self.padded_heads and self.num_kv_heads not in (1, self.num_heads)):
            raise UsageError(
                f"padded_heads must be at least num_heads = {self.num_heads} (got {self.padded_heads}), and needs "
                f"multi-head or multi-query attention."
            )
        if self.window is not None and (self.window < 1 or not self.causal):
            raise UsageError(f"window must be at least 1 (got {self.window}), and needs causal attention.")
        if has_state and not self.causal:
            raise UsageError("Attention that is not causal has no decoding state. Remove the state, or set causal.")

    def _output(self, mixed: Float[Array, "b s n d"], *, has_state: bool) -> Float[Array, "b s m"]:
        mixed = mixed[:, :, : self.num_heads]
        fan_in = self.num_heads * self.head_dim
        init: Any = {"init": self.out_initializer, "role": "hidden", "fan_in": fan_in}
        heads = (fan_in,) if self.merged_heads else (self.num_heads, self.head_dim)
        name = "attention_out_am" if self.merged_heads else "attention_out_ndm"
        w = weight(self, name, (*heads, self.model_dim), **init).astype(self.dtype)
        # In decoding XLA sums over d before n, and transposes the weights for that, unless there is one dimension.
        if self.merged_heads or (has_state and not split_of(self.specs, name, 1)):
            y = product(mixed.reshape(*mixed.shape[:2], fan_in), w.reshape(fan_in, -1))
        else:
            y = product(mixed, w, 2)
        if self.use_bias if self.use_out_bias is None else self.use_out_bias:
            b_m = weight(self, "attention_out_bias_m", (self.model_dim,), init=Constant(), role="bias")
            y += b_m.astype(self.dtype)
        return y

    def _mask(self, query_ids, key_ids, start, queries: int, keys: int) -> Bool[Array, "#b s t"]:
        """Returns True at keys at or before the query (if causal), in its window, and in its segment."""
        distance = (start + jnp.arange(queries))[None, :, None] - jnp.arange(keys)
        mask = distance >= 0 if self.causal else jnp.ones_like(distance, bool)
        if self.window is not None:
            mask = mask & (distance < self.window)
        if query_ids is not None:
            mask = mask & (query_ids[:, :, None] == key_ids[:, None, :])
        return mask

    @property
    def _scale(self) -> float:
        if self.qk_norm == "l2":
            return 1.0  # learned
        return self.head_dim**-0.5 if self.scale is None else self.scale

    @property
    def _scores(self) -> Scores:
        return Scores(
            causal=self.causal,
            window=self.window,
            softcap=self.softcap,
            function=self.score_function,
            extra_logit=self.extra_logit,
            epsilon=self.epsilon,
            length=self.score_length,
            dropout_rate=self.dropout_rate,
        )

    def _attend_by_kernel(self, decision: Decision, query, key_bktd, value_bktd, query_ids, key_ids, start):
        """Returns the mixture of values, (b, s, n, d)."""
        keys = Keys(key_bktd, value_bktd, key_ids)
        activations = heads_of(self.activations) if decision.exchange == "all_to_all" else self.activations
        if decision.implementation == "splash":
            from layers.attention import splash  # with JAX's kernels for TPUs

            return splash.attend(self._scores, self.block_size, query * self._scale, keys, query_ids, activations)
        if query_ids is not None and self.max_segments is not None and not decision.without_kernel:
            how = self._scores, self._scale
            return cudnn.attend_packed(*how, query, keys, query_ids, self.max_segments, activations)
        mask = None
        if query_ids is not None:
            mask = self._mask(query_ids, key_ids, start, query.shape[1], key_bktd.shape[2])
        return cudnn.attend(self._scores, self._scale, query, keys, mask)

    def _attend_blockwise(self, decision: Decision, query, key_bktd, value_bktd, query_ids, key_ids, start):
        """Returns the mixture of values, (b, s, n, d)."""
        how, is_known = self._scores, isinstance(start, int)
        queries, length = query.shape[1], key_bktd.shape[2]
        dropout_keys, bias = None, None
        if self.dropout_rate and self.has_rng("dropout"):
            dropout_keys = jax.random.bits(self.make_rng("dropout"), (*key_bktd.shape[:2], 2), "uint32")
        # Blocks at the ends have entries after the last query and key.
        padded = queries + min(self.block_size, queries), length + min(self.block_size, length)
        if self.relative_bias is not None:
            bias = self.relative_bias.by_distance(start, *padded)
            bias = jnp.pad(bias, ((0, self._slots - self.num_heads), (0, 0)))
        first = start + padded[0] - 1 if bias is not None else None
        others = Others(query_ids, None if is_known else start, first, dropout_keys)
        query, keys = query * self._scale, Keys(key_bktd, value_bktd, key_ids)
        if decision.exchange in ("ring", "all_gather"):
            exchange = exchange_of(decision.exchange, how, self.block_size, queries, self.activations)
            return attend_split(how, exchange, self.block_size, query, keys, bias, others, self.activations)
        bias = None if bias is None else bias.reshape(self._kv_slots, -1, bias.shape[1])
        alone = Alone(start=start if is_known else None)
        return ungrouped(attend(how, alone, self.block_size, grouped(query, keys), keys, bias, others))

    def _attend_in_parts(self, parts: int, query, key_bktd, value_bktd, query_ids, key_ids, start) -> jax.Array:
        """Returns the mixture of values, (b, s, n, d), from `parts` dense products with the keys of each part."""
        if parts == 1:
            return self._attend(query, key_bktd, value_bktd, query_ids, key_ids, start)
        mixed, step = [], query.shape[1] // parts
        for begin in range(0, query.shape[1], step):
            end = begin + step
            ids = (None, None) if query_ids is None else (query_ids[:, begin:end], key_ids[:, :end])
            mixed.append(self._attend(query[:, begin:end], key_bktd[:, :, :end], value_bktd[:, :, :end], *ids, begin))
        return jnp.concatenate(mixed, axis=1)

    def _attend(self, query, key_bktd, value_bktd, query_ids, key_ids, start) -> Float[Array, "b s n d"]:
        (batch, length, heads, dim), keys = query.shape, key_bktd.shape[2]
        mask, bias_nqt = self._mask(query_ids, key_ids, start, length, keys), None
        if self.relative_bias is not None:
            bias_nqt = self.relative_bias(start, length, keys)
            bias_nqt = jnp.pad(bias_nqt, ((0, self._slots - self.num_heads), (0, 0), (0, 0)))
        group = heads // self._kv_slots
        # Heads in front: one matrix product per key head, with the queries of its group stacked as rows. Without groups
        # that dimension is omitted, because a product that sums over two dimensions transposes both operands first.
        groups, g = ((group,), "g") if group > 1 else ((), "")
        query = jnp.moveaxis((query * self._scale).reshape(batch, length, -1, *groups, dim), 1, -2)
        scores = jnp.einsum(f"bk{g}qd,bktd->bk{g}qt", query, key_bktd, preferred_element_type=jnp.float32)
        if self.softcap is not None:
            scores = self.softcap * jnp.tanh(scores / self.softcap)
        if bias_nqt is not None:
            scores += bias_nqt.reshape(1, -1, *groups, *bias_nqt.shape[1:])
        watch(self, "scores", scores)
        scores = masked(scores, jnp.expand_dims(mask, tuple(range(1, scores.ndim - 2))))
        probabilities = value_weights(scores, self.score_function, self.extra_logit, self.epsilon, self.score_length)
        probabilities = watch(self, "probabilities", probabilities).astype(self.dtype)
        probabilities = dropout(self, probabilities, self.dropout_rate)
        mixed = jnp.einsum(f"bk{g}qt,bktd->bk{g}qd", probabilities, value_bktd)
        return jnp.moveaxis(mixed, -2, 1).reshape(batch, length, heads, dim)


def check_heads(num_heads: int, num_kv_heads: int) -> None:
    """Raises a UsageError unless every key head serves the same number of query heads."""
    if num_kv_heads < 1 or num_heads % num_kv_heads:
        raise UsageError(f"num_kv_heads must divide num_heads = {num_heads} (got {num_kv_heads}).")
