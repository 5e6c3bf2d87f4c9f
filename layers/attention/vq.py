"""Attention in linear time over vector-quantized keys (Lingle 2023, Transformer-VQ)."""

import dataclasses
import math
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from layers.attention.code_cache import CodeCache, chunks, merge, prefixes
from layers.attention.gated import MASKED, GatedHeads, by_distance
from layers.attention.quantizer import VectorQuantizer
from layers.errors import UsageError
from layers.positions.relative_distance import shift_window
from layers.positions.segments import SegmentIds, segment_numbers
from layers.remat import recomputed
from layers.specs import constrain, split_of


class Window(struct.PyTreeNode):
    """Keys before a block and in it: t tokens, any leading dimensions."""

    codes_tk: Int[Array, "*batch t k"]
    key_tkd: Float[Array, "*batch t k d"]  # quantized
    value_tkf: Float[Array, "*batch t k f"]
    segment_ids_t: Int[Array, "*batch t"]  # -1 marks an empty slot


class VQState(struct.PyTreeNode):
    """State of VQ attention, of constant size: the last tokens, and the cache of all earlier ones."""

    window: Window  # leading dimension (b,), memory_length tokens
    cache: CodeCache  # leading dimension (b,)


class VQAttention(GatedHeads):
    """Exact softmax attention over the quantized keys of the complete past, in time linear in its length.

    Keys of one code share a score, so together they weigh exp(score) * count in the softmax and contribute the mean of
    their values (Lingle 2023, theorem 3.6). A query attends to the last `memory_length` keys and those of its own block
    individually, and to older ones through the cache. Distances up to `memory_length` have their own scores; keys
    further away are compared by content alone. The output depends neither on `block_length` nor on how a sequence is
    cut into calls; the last, shorter block of a call is processed separately. The gradient depends on both slightly: a
    key has one (straight-through) from queries that read it individually, none from queries that read it through the
    cache.
    """

    quantizer: VectorQuantizer = dataclasses.field(kw_only=True)
    block_length: int = 512  # tokens processed at once; they attend to each other individually
    memory_length: int = 512  # M: keys that are read individually; distances up to M have their own scores
    cache: bool = True  # attend to keys further back than memory_length through the cache; False ignores them
    gradient_through_cache: bool = True  # pass gradients to keys and values before a query's own block
    reduction: Literal["serial", "matmul", "assoc_scan", "sum", "scan"] = "serial"
    """Computation of the caches of preceding blocks (layers.attention.code_cache.prefixes); `scan` processes the blocks
    sequentially and holds the scores of one block at a time."""

    def init_state(self, batch_size: int, capacity: int) -> VQState:
        """Returns an empty state; its size does not depend on `capacity`."""
        del capacity
        shape = (batch_size, self.memory_length, self.num_kv_heads)
        window = Window(
            jnp.full(shape, self.quantizer.num_codes, jnp.int32),
            jnp.zeros((*shape, self.key_dim), self.dtype),
            jnp.zeros((*shape, self.value_dim), self.dtype),
            jnp.full(shape[:2], -1, jnp.int32),
        )
        codes = self.quantizer.num_codes
        return VQState(window, CodeCache.empty((batch_size,), self.num_kv_heads, codes, self.value_dim))

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b s m"],
        state: VQState | None = None,
        segment_ids: SegmentIds = None,
        positions: Int[Array, "b s"] | None = None,
    ) -> tuple[Float[Array, "b s m"], VQState | None]:
        """Mixes along the sequence; with `state`, continues the sequence that the state holds.

        Raises:
          UsageError: a length is below 1, or `reduction` is unknown.
        """
        del positions  # distances are between places in the row
        if self.block_length < 1 or self.memory_length < 1:
            sizes = f"{self.block_length} and {self.memory_length}"
            raise UsageError(f"block_length and memory_length must be at least 1 (got {sizes}).")
        y = self._project(x)
        quantized = self.quantizer(y.key_bskd, segment_ids)
        distance_bwkd = self._distances(self.memory_length + 1, x.shape[0])[:, ::-1]
        ids = segment_numbers(segment_ids, x.shape[:2])
        tokens = _Tokens(
            y.content_bskgd,
            y.position_bskgd,
            Window(quantized.codes_bsk, quantized.key_bskd.astype(self.dtype), y.value_bskf, ids),
        )
        book_kcd = quantized.codebook_kcd.astype(self.dtype)
        before = self.init_state(x.shape[0], 0) if state is None else state
        mixed, after = self._sequence(tokens, before, book_kcd, distance_bwkd)
        y_bsm = self._output(mixed.reshape(*x.shape[:2], self.num_heads, self.value_dim), y.gate_bsnf)
        return y_bsm, None if state is None else after

    def _sequence(self, tokens: "_Tokens", state: VQState, book, distances) -> tuple[jax.Array, VQState]:
        """Processes all complete blocks, then the remaining tokens as one shorter block."""
        length = tokens.content.shape[1]
        whole = length // self.block_length * self.block_length
        outputs = []
        if whole:
            head = jax.tree.map(lambda t: t[:, :whole], tokens)
            run = self._scan if self.reduction == "scan" else self._blocks
            mixed, state = run(head, state, book, distances, whole // self.block_length)
            outputs.append(mixed)
        if whole < length:
            rest = jax.tree.map(lambda t: t[:, whole:], tokens)
            mixed, state = self._blocks(rest, state, book, distances, 1)
            outputs.append(mixed)
        return outputs[0] if len(outputs) == 1 else jnp.concatenate(outputs, axis=1), state

    def _scan(self, tokens: "_Tokens", state: VQState, book, distances, number: int) -> tuple[jax.Array, VQState]:
        split = jax.tree.map(lambda t: jnp.moveaxis(t.reshape(t.shape[0], number, -1, *t.shape[2:]), 1, 0), tokens)

        @jax.checkpoint
        def block(state: VQState, tokens: "_Tokens") -> tuple[VQState, jax.Array]:
            mixed, state = self._blocks(tokens, state, book, distances, 1)
            return state, mixed

        state, mixed = jax.lax.scan(block, state, split)
        return jnp.moveaxis(mixed, 0, 1).reshape(mixed.shape[1], -1, *mixed.shape[3:]), state

    def _blocks(self, tokens: "_Tokens", state: VQState, book, distances, number: int) -> tuple[jax.Array, VQState]:
        """Processes all blocks of a sequence in parallel: their windows, the caches before them, and the softmax."""
        if not self.gradient_through_cache:
            state = jax.lax.stop_gradient(state)
        window, leaving, remembered = self._windows(state.window, tokens.keys, number)
        cache, end = state.cache, state.cache
        if self.cache:
            parts = chunks(leaving.codes_tk, leaving.value_tkf, leaving.segment_ids_t, self.quantizer.num_codes)
            cache, end = self._prefixes(state.cache, parts)
        if not self.gradient_through_cache:
            cache, window = jax.lax.stop_gradient(cache), self._own_gradient(window)
        split = lambda t: _split(t, number)
        queries = (split(tokens.content), split(tokens.position), split(tokens.keys.segment_ids_t))
        mixed = self._attend(*queries, window, cache, book, distances)
        return mixed.reshape(mixed.shape[0], -1, *mixed.shape[3:]), VQState(remembered, end)

    def _prefixes(self, start: CodeCache, parts: CodeCache) -> tuple[CodeCache, CodeCache]:
        number = parts.count_kc.shape[1]
        if number == 1:
            return jax.tree.map(lambda x: x[:, None], start), merge(start, jax.tree.map(lambda x: x[:, 0], parts))
        parts = parts.replace(mean_kcf=constrain(parts.mean_kcf, self.activations, "cache_brkcf"))
        cache, end = prefixes(start, parts, self.reduction, self._sequence_shards)
        return cache.replace(mean_kcf=constrain(cache.mean_kcf, self.activations, "cache_brkcf")), end

    @property
    def _sequence_shards(self) -> int:
        """Returns the number of parts that the mesh splits a sequence's blocks into."""
        return math.prod(split_of(self.activations, "cache_brkcf", 1).values())

    def _windows(self, past: Window, keys: Window, number: int) -> tuple[Window, Window, Window]:
        """Returns the tokens that each of `number` blocks reads individually, (b, r, M + l, ...), the l tokens that
        leave its window after it, (b, r, l, ...), and the last M tokens of all, (b, M, ...).
        """
        memory = self.memory_length
        block = keys.segment_ids_t.shape[1] // number
        before = memory // block  # blocks that fit in the memory

        def whole(old: jax.Array, new: jax.Array) -> tuple[jax.Array, ...]:
            """Shifts by complete blocks, which devices that share a sequence send to their neighbors."""
            blocks, early = _split(new, number), _split(old, before)
            moved = []
            for i in range(before, 0, -1):
                ahead = jnp.arange(number).reshape(1, -1, *[1] * (blocks.ndim - 2)) >= i
                rest = [(0, 0), (0, number - i)] + [(0, 0)] * (blocks.ndim - 2)
                moved.append(jnp.where(ahead, jnp.roll(blocks, i, axis=1), jnp.pad(early[:, before - i :], rest)))
            last = blocks[:, number - before :].reshape(old.shape)
            return jnp.concatenate([*moved, blocks], axis=2), moved[0], last

        def any_length(old: jax.Array, new: jax.Array) -> tuple[jax.Array, ...]:
            stream = jnp.concatenate([old, new], axis=1)
            length = new.shape[1]
            places = block * jnp.arange(number)[:, None] + jnp.arange(memory + block)
            window = stream[:, None] if number == 1 else stream[:, places]
            return window, _split(stream[:, :length], number), stream[:, length:]

        fits = number > 1 and memory % block == 0 and 1 <= before <= min(8, number)
        found = jax.tree.map(whole if fits else any_length, past, keys)
        three: Any = jax.tree.transpose(jax.tree.structure(past), jax.tree.structure((0, 0, 0)), found)
        return three

    def _own_gradient(self, window: Window) -> Window:
        memory = self.memory_length
        stop = lambda x: jnp.concatenate([jax.lax.stop_gradient(x[:, :, :memory]), x[:, :, memory:]], axis=2)
        return window.replace(key_tkd=stop(window.key_tkd), value_tkf=stop(window.value_tkf))

    def _attend(self, content, position, ids, window: Window, cache: CodeCache, book, distances):
        """Returns the mixture of values for every query, (b, r, l, k, g, f)."""
        seen = self._seen(ids, window.segment_ids_t)
        near = jnp.einsum("brlkgd,brtkd->brkglt", content, window.key_tkd, preferred_element_type=jnp.float32)
        near += shift_window(by_distance(position, distances), window.segment_ids_t.shape[2])
        near = constrain(jnp.where(seen[:, :, None, None], near, MASKED), self.activations, "scores_brkglt")
        largest = jnp.max(near, axis=-1, keepdims=True)
        if self.cache:
            far = jnp.einsum("brlkgd,kcd->brkglc", content, book, preferred_element_type=jnp.float32)
            count = jnp.where(cache.count_kc > 0, jnp.log(jnp.maximum(cache.count_kc, 1)), MASKED)
            same = cache.segment[..., None] == ids
            far = jnp.where(same[:, :, None, None, :, None], far + count[:, :, :, None, None, :], MASKED)
            far = constrain(far, self.activations, "scores_brkglt")
            largest = jnp.maximum(largest, jnp.max(far, axis=-1, keepdims=True))
        largest = jax.lax.stop_gradient(largest)
        near = jnp.exp(near - largest)
        total = jnp.sum(near, axis=-1)
        kinds: Any = {"preferred_element_type": jnp.float32}
        mixed = jnp.einsum("brkglt,brtkf->brlkgf", near.astype(self.dtype), window.value_tkf, **kinds)
        if self.cache:
            far = jnp.exp(far - largest)
            total += jnp.sum(far, axis=-1)
            mixed += _mixture(far.astype(self.dtype), cache.mean_kcf.astype(self.dtype))
        return (mixed / jnp.moveaxis(total, -1, 2)[..., None]).astype(self.dtype)

    def _seen(self, ids: Int[Array, "b r l"], keys: Int[Array, "b r t"]) -> Bool[Array, "b r l t"]:
        """Returns True for keys of the window that a query attends to: not in its future, and in its segment."""
        place_l, place_t = jnp.arange(ids.shape[2])[:, None] + self.memory_length, jnp.arange(keys.shape[2])
        near = place_t <= place_l
        if not self.cache:
            near &= place_t >= place_l - self.memory_length
        return near & (ids[..., None] == keys[:, :, None, :])


def _mixture(share: Float[Array, "b r k g l c"], mean: Float[Array, "b r k c f"]) -> Float[Array, "b r l k g f"]:
    """Returns the mean values in proportion to their shares, in float32.

    On CPU the operands are cast: XLA leaves this product to a routine that has no bfloat16 operands with a float32
    result.
    """

    def product(share: Array, mean: Array) -> Array:
        return jnp.einsum("brkglc,brkcf->brlkgf", share, mean, preferred_element_type=jnp.float32)

    cast = lambda share, mean: product(share.astype(jnp.float32), mean.astype(jnp.float32))
    # Recomputed, because the backward pass would otherwise store the operands of both platforms.
    chosen = recomputed(lambda share, mean: jax.lax.platform_dependent(share, mean, cpu=cast, default=product))
    return chosen(share, mean)


def _split(x: Array, number: int) -> Array:
    """Reshapes (b, s, ...) to (b, r, l, ...)."""
    return x.reshape(x.shape[0], number, -1, *x.shape[2:])


class _Tokens(struct.PyTreeNode):
    content: Float[Array, "b s k g d"]
    position: Float[Array, "b s k g d"]
    keys: Window
