"""Gated attention units with scores by distance: the base of the VQ mixer and of its quadratic counterpart."""

import functools
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from layers.attention.key_value_cache import KeyValueCache, append
from layers.attention.score_functions import masked, value_weights
from layers.attention.softmax import check_heads
from layers.auxiliary import place
from layers.dropout import dropout
from layers.errors import UsageError
from layers.feed_forward.activations import activation
from layers.norm import rms_normalize
from layers.platform import products_are_counted
from layers.positions.embeddings import sinusoids
from layers.positions.relative_distance import shift_sequence
from layers.positions.segments import SegmentIds, segment_numbers
from layers.specs import Specs, constrain, split_of
from layers.weights.initializers import Constant, Initializer
from layers.weights.products import product, products_of
from layers.weights.weight import weight

MASKED = -1e30  # score of a masked key
LEAST_CHUNK = 256  # queries; with fewer, one product for all keys is faster than one for each chunk of keys (CPU)


class Projected(struct.PyTreeNode):
    """Projections of a layer's input. Query heads are grouped by key head: g = num_heads / num_kv_heads."""

    content_bskgd: Float[Array, "b s k g d"]  # queries to compare with keys
    position_bskgd: Float[Array, "b s k g d"]  # queries to compare with distances
    key_bskd: Float[Array, "b s k d"]  # float32
    value_bskf: Float[Array, "b s k f"]
    gate_bsnf: Float[Array, "b s n f"] | None


class GatedHeads(nn.Module):
    """Base of the gated mixers: queries and keys of one size, values, an optional gate, and scores by distance.

    With a gate and one head of `value_dim` 2 m it is a gated attention unit (Hua et al. 2022, FLASH, section 3.1, with
    softmax); without a gate, multi-head (`num_kv_heads` = `num_heads`) or multi-query (1) attention. Queries and keys
    are RMS-normalized per head and scaled by key_dim^-1/4 each, so that their product is scaled by key_dim^-1/2. The
    score of a key at distance t is (query + u) key + (query + w) W sin(t), with learned u and w (Dai et al. 2019,
    section 3.3).
    """

    SPECS: ClassVar[tuple[str, ...]] = (
        "query_mnd",
        "key_mkd",
        "value_mkf",
        "gate_mnf",
        "attention_out_nfm",
        "distance_mkd",
        "content_bias_nd",
        "position_bias_nd",
        "query_bsnd",
        "key_bskd",
        "value_bskf",
        "gate_bsnf",
        "mixed_bsnf",
        "scores_brkglt",
        "cache_brkcf",
    )

    specs: Specs
    activations: Specs
    model_dim: int
    num_heads: int
    num_kv_heads: int  # divides num_heads
    key_dim: int
    value_dim: int  # per key head
    gated: bool  # applies silu to the values, and multiplies their mixture by silu of a gate
    initializer: Initializer  # of all matrices, the output matrix by default
    out_initializer: Initializer | None = None  # of the output matrix; None is `initializer`
    wavelength: float = 1e5  # wavelength of the slowest sine over distances, divided by 2 pi
    sinusoid_dropout: float = 0.0  # rate of dropout on the sines; one mask for all updates that a row is cut into
    epsilon: float = 1e-6  # of the norms
    joint_projections: bool = True  # one product for matrices of equal shape: queries and keys, values and gate
    dtype: str = "float32"  # of the computation; softmax, counts and quantization are always float32
    param_dtype: str = "float32"

    def _check_heads(self) -> None:
        for name in ("num_heads", "key_dim", "value_dim"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1 (got {getattr(self, name)}).")
        check_heads(self.num_heads, self.num_kv_heads)
        if self.model_dim % 2:
            raise UsageError(f"model_dim must be even for pairs of sines and cosines (got {self.model_dim}).")

    def _matrix(self, key: str, *shape: int) -> jax.Array:
        init: Any = {"init": self.initializer, "role": "hidden", "fan_in": self.model_dim}
        return weight(self, key, (self.model_dim, *shape), **init).astype(self.dtype)

    def _normed(self, x: jax.Array) -> Float[Array, "b s h d"]:
        return rms_normalize(x, self.epsilon) * self.key_dim**-0.25

    def _project(self, x: Float[Array, "b s m"]) -> Projected:
        self._check_heads()
        matrices = [
            self._matrix("query_mnd", self.num_heads, self.key_dim),
            self._matrix("key_mkd", self.num_kv_heads, self.key_dim),
            self._matrix("value_mkf", self.num_kv_heads, self.value_dim),
            *([self._matrix("gate_mnf", self.num_heads, self.value_dim)] if self.gated else []),
        ]
        query, key, value, *gates = products_of(x, matrices, self.joint_projections)
        query = place(self, "query_bsnd", self._normed(query))
        key = place(self, "key_bskd", self._normed(key))
        value, gate, silu = place(self, "value_bskf", value), None, activation("silu")
        if self.gated:
            gate, value = place(self, "gate_bsnf", silu(gates[0])), silu(value)
        queries = []
        for name in ("content_bias_nd", "position_bias_nd"):
            bias_nd = weight(self, name, (self.num_heads, self.key_dim), init=Constant(), role="bias")
            biased = (query + bias_nd * self.key_dim**-0.25).astype(self.dtype)
            queries.append(biased.reshape(*x.shape[:2], self.num_kv_heads, -1, self.key_dim))
        return Projected(queries[0], queries[1], key, value, gate)

    def _distances(self, count: int, rows: int) -> Float[Array, "#b count k d"]:
        """Returns the embeddings of distances 0 ... count - 1; one for all rows, or one per row with dropout."""
        distance_mkd = self._matrix("distance_mkd", self.num_kv_heads, self.key_dim)
        sines = sinusoids(jnp.arange(count), self.model_dim, self.wavelength)[None]
        if self.sinusoid_dropout and self.has_rng("sequence"):
            sines = jnp.broadcast_to(sines, (rows, *sines.shape[1:]))
            sines = dropout(self, sines, self.sinusoid_dropout, stream="sequence")
        projected = product(sines.astype(self.dtype), distance_mkd)
        return projected * self.key_dim**-0.25

    def _output(self, mixed: Float[Array, "b s n f"], gate: jax.Array | None) -> Float[Array, "b s m"]:
        fan_in = self.num_heads * self.value_dim
        init: Any = {"init": self.out_initializer or self.initializer, "role": "hidden", "fan_in": fan_in}
        shape = (self.num_heads, self.value_dim, self.model_dim)
        out_nfm = weight(self, "attention_out_nfm", shape, **init).astype(self.dtype)
        mixed = place(self, "mixed_bsnf", mixed.astype(self.dtype))
        return product(mixed if gate is None else mixed * gate, out_nfm, 2)


class FullAttention(GatedHeads):
    """Softmax over all keys, not quantized, with scores for every distance: VQ attention in quadratic time."""

    query_chunk: int = 512  # queries whose scores are in memory at once

    def init_state(self, batch_size: int, capacity: int) -> KeyValueCache:
        """Returns an empty cache for `capacity` positions."""
        heads = (batch_size, capacity, self.num_kv_heads)
        key = constrain(jnp.zeros((*heads, self.key_dim), self.dtype), self.activations, "key_bskd")
        value = constrain(jnp.zeros((*heads, self.value_dim), self.dtype), self.activations, "value_bskf")
        ids = jnp.full((batch_size, capacity), -1, jnp.int32)
        return KeyValueCache(key.swapaxes(1, 2), value.swapaxes(1, 2), ids, jnp.int32(0))

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b s m"],
        state: KeyValueCache | None = None,
        segment_ids: SegmentIds = None,
        positions: Int[Array, "b s"] | None = None,
    ) -> tuple[Float[Array, "b s m"], KeyValueCache | None]:
        """Mixes along the sequence; with `state`, continues the sequence that the state holds."""
        del positions  # distances are between places in the row
        y = self._project(x)
        ids = segment_numbers(segment_ids, x.shape[:2])
        key, value, start = y.key_bskd.astype(self.dtype).swapaxes(1, 2), y.value_bskf.swapaxes(1, 2), jnp.int32(0)
        if state is None:
            memory = KeyValueCache(key, value, ids, start)
        else:
            start, memory = state.index, append(state, key, value, ids)
            state = memory
        # One row per possible distance, and zeros for keys in the future.
        keys = memory.key_bktd.shape[2]
        distance_btkd = self._distances(keys, x.shape[0])[:, ::-1]
        distance_btkd = jnp.pad(distance_btkd, ((0, 0), (0, keys), (0, 0), (0, 0)))
        attend = functools.partial(self._attend, memory, distance_btkd)
        # Devices that share a sequence would exchange keys once for each pair of chunks.
        is_split = bool(split_of(self.activations, "value_bskf", 1))
        leaves_out = self.query_chunk >= LEAST_CHUNK and state is None and not is_split
        if leaves_out and not products_are_counted():
            attend_chunk = functools.partial(self._attend_before, _chunks(memory, self.query_chunk), distance_btkd)
        else:
            attend_chunk = attend
        mixed = self._by_chunks(attend_chunk, attend, start, y.content_bskgd, y.position_bskgd, ids)
        return self._output(mixed.reshape(*x.shape[:2], self.num_heads, self.value_dim), y.gate_bsnf), state

    def _by_chunks(self, attend_chunk: Any, attend: Any, start: jax.Array, *queries: jax.Array) -> jax.Array:
        if self.query_chunk < 1:
            raise UsageError(f"query_chunk must be at least 1 (got {self.query_chunk}).")
        number, rest = divmod(queries[0].shape[1], self.query_chunk)
        if number + bool(rest) == 1:
            return attend(start, *queries)
        whole = number * self.query_chunk
        split = [jnp.moveaxis(_cut(q, 1, self.query_chunk), 1, 0) for q in queries]
        starts = start + self.query_chunk * jnp.arange(number)
        mixed = jax.lax.map(lambda xs: jax.checkpoint(attend_chunk)(*xs), (starts, *split))
        mixed = jnp.moveaxis(mixed, 0, 1).reshape(mixed.shape[1], whole, *mixed.shape[3:])
        if rest:
            mixed = jnp.concatenate([mixed, attend(start + whole, *(q[:, whole:] for q in queries))], axis=1)
        return mixed

    def _attend_before(
        self, chunks: KeyValueCache, distance_btkd, start, content, position, ids
    ) -> Float[Array, "b l k g f"]:
        """Attends to the keys of a row in chunks, those after its own chunk left out (Milakov & Gimelshein 2018)."""
        length = content.shape[1]
        firsts = length * jnp.arange(chunks.key_bktd.shape[0])
        # Of all chunks: a slice inside the scan would have a gradient as large as the table.
        rows = jax.vmap(lambda first: self._rows(distance_btkd, length, start - first, length))(firsts)

        @jax.checkpoint
        def add(sums: tuple[jax.Array, ...], chunk: Any) -> tuple[jax.Array, ...]:
            first, keys, rows = chunk
            top, total, mixed = sums
            scores = self._scores(keys, rows, start - first, content, position, ids)
            highest = jax.lax.stop_gradient(jnp.maximum(top, jnp.max(scores, axis=-1)))  # cancels in the quotient
            weights, kept = jnp.exp(scores - highest[..., None]), jnp.exp(top - highest)
            new = jnp.einsum(
                "bkglt,bktf->bkglf", weights.astype(self.dtype), keys.value_bktd, preferred_element_type=jnp.float32
            )
            return highest, kept * total + jnp.sum(weights, axis=-1), kept[..., None] * mixed + new

        def step(sums: tuple[jax.Array, ...], chunk: Any) -> tuple[tuple[jax.Array, ...], None]:
            return jax.lax.cond(chunk[0] <= start, add, lambda sums, chunk: sums, sums, chunk), None

        batch, _, heads, groups, _ = content.shape
        zeros = jnp.zeros((batch, heads, groups, length), jnp.float32)
        mixed = jnp.zeros((*zeros.shape, self.value_dim), jnp.float32)
        lowest = jnp.full_like(zeros, jnp.finfo(jnp.float32).min)
        (_, total, mixed), _ = jax.lax.scan(step, (lowest, zeros, mixed), (firsts, chunks, rows))
        return jnp.moveaxis(mixed / total[..., None], 3, 1).astype(self.dtype)

    def _attend(self, memory: KeyValueCache, distance_btkd, start, content, position, ids) -> Float[Array, "b l k g f"]:
        rows = self._rows(distance_btkd, content.shape[1], start, memory.key_bktd.shape[2])
        probabilities = value_weights(self._scores(memory, rows, start, content, position, ids)).astype(self.dtype)
        return jnp.einsum("bkglt,bktf->blkgf", probabilities, memory.value_bktd)

    def _rows(self, distance_btkd: jax.Array, length: int, start: Any, keys: int) -> Float[Array, "#b w k d"]:
        """Returns embeddings of the distances of `length` queries, the first at position `start` of `keys` keys."""
        # Row r of the table is distance total - 1 - r: the last query's distance to key 0 is first.
        total = distance_btkd.shape[1] // 2
        return jax.lax.dynamic_slice_in_dim(distance_btkd, total - length - start, keys + length - 1, axis=1)

    def _scores(self, memory: KeyValueCache, rows, start, content, position, ids) -> Float[Array, "b k g l t"]:
        """Returns the scores of keys, the lowest float for those that are not seen; the first query is at `start`."""
        keys = memory.key_bktd.shape[2]
        scores = jnp.einsum("blkgd,bktd->bkglt", content, memory.key_bktd, preferred_element_type=jnp.float32)
        scores += shift_sequence(by_distance(position, rows), keys)
        place_l = start + jnp.arange(content.shape[1])
        seen_blt = (jnp.arange(keys) <= place_l[:, None]) & (ids[:, :, None] == memory.segment_ids_bt[:, None, :])
        return masked(scores, seen_blt[:, None, None])


def _chunks(memory: KeyValueCache, length: int) -> KeyValueCache:
    """Returns keys in chunks, which are first in each array, without the rest."""
    cut = lambda x, axis: jnp.moveaxis(_cut(x, axis, length), axis, 0)
    key, value, ids = cut(memory.key_bktd, 2), cut(memory.value_bktd, 2), cut(memory.segment_ids_bt, 1)
    return KeyValueCache(key, value, ids, jnp.zeros(key.shape[0], jnp.int32))


def _cut(x: jax.Array, axis: int, length: int) -> jax.Array:
    """Cuts an axis into chunks, without its rest: (..., s, ...) -> (..., i, c, ...)."""
    number = x.shape[axis] // length
    x = jax.lax.slice_in_dim(x, 0, number * length, axis=axis)
    return x.reshape(*x.shape[:axis], number, length, *x.shape[axis + 1 :])


def by_distance(
    position: Float[Array, "b *blocks l k g d"], rows: Float[Array, "#b w k d"]
) -> Float[Array, "b *blocks k g l w"]:
    """Returns scores of queries against embedded distances, in float32."""
    kinds: Any = {"preferred_element_type": jnp.float32}
    if rows.shape[0] == 1:
        return jnp.einsum("b...lkgd,wkd->b...kglw", position, rows[0], **kinds)
    return jnp.einsum("b...lkgd,bwkd->b...kglw", position, rows, **kinds)
