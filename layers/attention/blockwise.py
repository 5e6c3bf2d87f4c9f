"""Attention over blocks of queries and keys: no array holds the scores of all pairs.

The forward pass keeps a running maximum, sum and weighted sum of values for each query (Rabe and Staats 2021, section
2); the backward pass computes each block of scores again (Dao et al. 2022, FlashAttention, algorithms 1 and 4). Blocks
in which no query sees a key are left out.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from layers.attention.block_pairs import block_pairs
from layers.attention.score_functions import has_row_sum, require_valid, unnormalized
from layers.positions.diagonals import diagonals

LOWEST = float(np.finfo(np.float32).min)
PADDING = (-1, -2)  # segment ids of queries and keys that fill the last block: no query sees such a key


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scores:
    """What becomes of scores: which are left out, and how the others become weights of values."""

    causal: bool = True
    window: int | None = None  # positions that a query sees, its own the last
    start: int | None = 0  # position of the first query; None: that of `Others`
    softcap: float | None = None
    function: str = "softmax"  # a name in layers.attention.score_functions
    extra_logit: float | None = None
    epsilon: float = 1e-6
    length: int | None = None
    dropout_rate: float = 0.0


class Others(NamedTuple):
    """Arrays without a gradient."""

    query_ids: Int[Array, "b s"] | None = None  # a query sees keys of its segment; None: of all
    key_ids: Int[Array, "b t"] | None = None
    start: Int[Array, ""] | None = None  # position of the first query among the keys
    dropout_key: jax.Array | None = None  # bits of a threefry key


def attend(
    how: Scores,
    block: int,
    query: Float[Array, "b k g s d"],
    key: Float[Array, "b k t d"],
    value: Float[Array, "b k t e"],
    bias: Float[Array, "k g w"] | None,
    others: Others,
) -> Float[Array, "b k g s e"]:
    """Returns the weighted values of each query, as the dense path of layers.attention.softmax does.

    Scores and sums are float32; the operands of products have the dtype of the query. The program has one loop over
    pairs of blocks in each pass, of 2 and 5 products.

    Args:
      how: from scores to weights.
      block: number of queries, and of keys, in a block; the dropped weights depend on it.
      query: already multiplied by the factor on the scores.
      key: keys at positions 0, 1, ...
      value: their values.
      bias: added to the scores, by `layers.positions.diagonals.distances` of as many queries and keys as complete
        blocks have (`padded_lengths`).
      others: arrays without a gradient.

    Raises:
      UsageError: as in layers.attention.score_functions.require_valid.
    """
    require_valid(how.function, how.extra_logit, how.length)
    result: Any = _attend(how, block, query, key, value, bias, others)
    return result


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(how: Scores, block: int, query: Any, key: Any, value: Any, bias: Any, others: Others) -> Any:
    return _forward(how, block, query, key, value, bias, others)[0]


def padded_lengths(queries: int, keys: int, block: int) -> tuple[int, int]:
    """Returns the numbers of queries and keys in complete blocks."""
    filled = lambda count: -(-count // min(count, block)) * min(count, block)
    return filled(queries), filled(keys)


class _Blocks:
    """The operands in blocks, each with its number as the leading dimension, and scores of pairs of blocks."""

    def __init__(self, how: Scores, block: int, query: Any, key: Any, others: Others):
        self.how, self.others = how, others
        self.groups, self.queries, self.keys = query.shape[2], query.shape[3], key.shape[2]
        self.sizes = min(block, self.queries), min(block, self.keys)
        self.padded = padded_lengths(self.queries, self.keys, block)
        self.query, self.key = self.split_queries(query), self.split_keys(key)
        self.start: Any = others.start if how.start is None else how.start
        self.pairs = block_pairs(
            self.queries, self.keys, self.sizes, causal=how.causal, window=how.window, start=how.start
        )
        self.has_segments = others.query_ids is not None
        if self.has_segments:
            self.query_ids = self._ids(others.query_ids, 0)
            self.key_ids = self._ids(others.key_ids, 1)

    def split_queries(self, x: jax.Array, padding: int = 0) -> jax.Array:
        """(b, k, g, s, ...) -> (i, b, k, g * q, ...): the queries of a group are rows of one product."""
        x = _padded(x, 3, self.padded[0], padding)
        x = x.reshape(*x.shape[:3], -1, self.sizes[0], *x.shape[4:])
        x = jnp.moveaxis(x, 3, 0)
        return x.reshape(*x.shape[:3], -1, *x.shape[5:])

    def join_queries(self, x: jax.Array) -> jax.Array:
        """The inverse of `split_queries`."""
        x = x.reshape(*x.shape[:3], self.groups, -1, *x.shape[4:])
        x = jnp.moveaxis(x, 0, 3)
        return x.reshape(*x.shape[:3], -1, *x.shape[5:])[:, :, :, : self.queries]

    def split_keys(self, x: jax.Array) -> jax.Array:
        """(b, k, t, ...) -> (j, b, k, c, ...)"""
        x = _padded(x, 2, self.padded[1])
        return jnp.moveaxis(x.reshape(*x.shape[:2], -1, self.sizes[1], *x.shape[3:]), 2, 0)

    def join_keys(self, x: jax.Array) -> jax.Array:
        """The inverse of `split_keys`."""
        x = jnp.moveaxis(x, 0, 2)
        return x.reshape(*x.shape[:2], -1, *x.shape[4:])[:, :, : self.keys]

    def _ids(self, ids: Any, side: int) -> jax.Array:
        ids = _padded(ids, 1, self.padded[side], PADDING[side])
        return jnp.moveaxis(ids.reshape(ids.shape[0], -1, self.sizes[side]), 1, 0)

    def scores(self, i: jax.Array, j: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns products of queries and keys (b, k, g * q, c), capped and not; the bias is not added."""
        products = jnp.einsum("bkrd,bkcd->bkrc", self.query[i], self.key[j], preferred_element_type=jnp.float32)
        if self.how.softcap is None:
            return products, products
        return self.how.softcap * jnp.tanh(products / self.how.softcap), products

    def bias_of(self, bias: jax.Array, i: jax.Array, j: jax.Array) -> jax.Array:
        """Returns the bias of a pair of blocks, (k, g * q, c)."""
        (rows, columns), width = self.sizes, sum(self.sizes) - 1
        first = self.padded[0] - (i + 1) * rows + j * columns
        part = jax.lax.dynamic_slice_in_dim(bias, first, width, axis=2)
        return diagonals(part.reshape(-1, width), rows, columns).reshape(bias.shape[0], -1, columns)

    def visible(self, i: jax.Array, j: jax.Array) -> jax.Array:
        """Returns True at keys that a query sees, broadcastable to (b, k, g * q, c)."""
        rows, columns = self.sizes
        numbers, positions = i * rows + jnp.arange(rows)[:, None], j * columns + jnp.arange(columns)
        distance = self.start + numbers - positions
        seen = (numbers < self.queries) & (positions < self.keys)
        if self.how.causal:
            seen &= distance >= 0
        if self.how.window is not None:
            seen &= distance < self.how.window
        seen = seen[None]
        if self.has_segments:
            seen = seen & (self.query_ids[i][:, :, None] == self.key_ids[j][:, None])
        return jnp.tile(seen, (1, self.groups, 1))[:, None]

    def kept(self, i: jax.Array, j: jax.Array, shape: tuple[int, ...]) -> jax.Array | None:
        """Returns True at weights that dropout keeps; None without dropout."""
        if self.others.dropout_key is None:
            return None
        number = i * (self.padded[1] // self.sizes[1]) + j
        key = jax.random.fold_in(jax.random.wrap_key_data(self.others.dropout_key, impl="threefry2x32"), number)
        return jax.random.bernoulli(key, 1 - self.how.dropout_rate, shape)

    def dropped(self, x: jax.Array, kept: jax.Array | None) -> jax.Array:
        """Returns x without the weights that dropout removes."""
        return x if kept is None else jnp.where(kept, x / (1 - self.how.dropout_rate), 0)

    def each(self, body: Callable[..., Any], carry: Any) -> Any:
        """Runs `body(carry, i, j)` for each pair of blocks in which a query sees a key."""

        def step(carry: Any, pair: tuple[jax.Array, jax.Array]) -> tuple[Any, None]:
            if self.how.start is not None or not self.how.causal:
                return body(carry, *pair), None
            i, j = pair
            is_seen = j * self.sizes[1] <= self.start + (i + 1) * self.sizes[0] - 1
            return jax.lax.cond(is_seen, lambda: body(carry, i, j), lambda: carry), None

        pairs: Any = self.pairs
        return jax.lax.scan(step, carry, pairs)[0]


def _padded(x: jax.Array, axis: int, length: int, value: int = 0) -> jax.Array:
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, length - x.shape[axis])
    return jnp.pad(x, widths, constant_values=value)


def _forward(how: Scores, block: int, query: Any, key: Any, value: Any, bias: Any, others: Others) -> Any:
    blocks = _Blocks(how, block, query, key, others)
    values = blocks.split_keys(value)
    rows = blocks.query.shape[:-1]  # (i, b, k, g * q)
    is_softmax, extra = how.function == "softmax", how.extra_logit
    mixed = jnp.zeros((*rows, value.shape[-1]), jnp.float32)
    peak = jnp.full(rows, LOWEST if extra is None else extra, jnp.float32)
    total = jnp.full(rows, 0.0 if extra is None else 1.0, jnp.float32)

    def body(carry: Any, i: jax.Array, j: jax.Array) -> Any:
        mixed, peak, total = carry
        scores, _ = blocks.scores(i, j)
        if bias is not None:
            scores += blocks.bias_of(bias, i, j)
        visible = blocks.visible(i, j)
        if is_softmax:
            before = peak[i]
            now = jnp.maximum(before, jnp.max(jnp.where(visible, scores, LOWEST), axis=-1))
            weights, shrunk = jnp.where(visible, jnp.exp(scores - now[..., None]), 0), jnp.exp(before - now)
            peak = peak.at[i].set(now)
        else:
            weights, shrunk = jnp.where(visible, unnormalized(scores, how.function), 0), jnp.ones(())
        total = total.at[i].set(total[i] * shrunk + jnp.sum(weights, axis=-1))
        weights = blocks.dropped(weights, blocks.kept(i, j, weights.shape)).astype(query.dtype)
        more = jnp.einsum("bkrc,bkce->bkre", weights, values[j], preferred_element_type=jnp.float32)
        return mixed.at[i].set(mixed[i] * shrunk[..., None] + more), peak, total

    mixed, peak, total = blocks.each(body, (mixed, peak, total))
    if how.length is not None and not has_row_sum(how.function):
        divisor = jnp.full(rows, how.length, jnp.float32)
    else:
        divisor = total if is_softmax else how.epsilon + total
    mixed = blocks.join_queries(mixed / jnp.where(divisor == 0, 1, divisor)[..., None])
    mixed = mixed.astype(query.dtype)
    normalizer = peak + jnp.log(divisor) if is_softmax else divisor
    return mixed, (query, key, value, bias, others, mixed, blocks.join_queries(normalizer))


def _backward(how: Scores, block: int, saved: Any, gradient: jax.Array) -> Any:
    query, key, value, bias, others, mixed, normalizer = saved
    blocks = _Blocks(how, block, query, key, others)
    values, gradients = blocks.split_keys(value), blocks.split_queries(gradient)
    normalizer = blocks.split_queries(normalizer, padding=1)
    mean = jnp.sum(gradient.astype(jnp.float32) * mixed.astype(jnp.float32), axis=-1)
    mean = blocks.split_queries(mean) if has_row_sum(how.function) else None
    dtype = query.dtype

    def body(carry: Any, i: jax.Array, j: jax.Array) -> Any:
        d_query, d_key, d_value, d_bias = carry
        scores, products = blocks.scores(i, j)
        if bias is not None:
            scores += blocks.bias_of(bias, i, j)
        visible, divisor = blocks.visible(i, j), normalizer[i][..., None]
        if how.function == "softmax":
            weights = slope = jnp.where(visible, jnp.exp(scores - divisor), 0)
        else:
            weights, pull = jax.vjp(lambda s: unnormalized(s, how.function), scores)
            weights, slope = (jnp.where(visible, x, 0) / divisor for x in (weights, *pull(jnp.ones_like(scores))))
        kept = blocks.kept(i, j, weights.shape)
        d_weights = jnp.einsum("bkre,bkce->bkrc", gradients[i], values[j], preferred_element_type=jnp.float32)
        d_weights = blocks.dropped(d_weights, kept)
        weights = blocks.dropped(weights, kept).astype(dtype)
        d_value = d_value.at[j].add(_product("bkrc,bkre->bkce", weights, gradients[i]))
        d_scores = slope * (d_weights if mean is None else d_weights - mean[i][..., None])
        if bias is not None:
            _, pull = jax.vjp(lambda bias: blocks.bias_of(bias, i, j), bias)
            d_bias = d_bias + pull(jnp.sum(d_scores, axis=0))[0]
        if how.softcap is not None:
            d_scores *= 1 - jnp.square(jnp.tanh(products / how.softcap))
        d_scores = d_scores.astype(dtype)
        d_query = d_query.at[i].add(_product("bkrc,bkcd->bkrd", d_scores, blocks.key[j]))
        d_key = d_key.at[j].add(_product("bkrc,bkrd->bkcd", d_scores, blocks.query[i]))
        return d_query, d_key, d_value, d_bias

    zeros = [jnp.zeros(x.shape, jnp.float32) for x in (blocks.query, blocks.key, values)]
    d_query, d_key, d_value, d_bias = blocks.each(body, (*zeros, None if bias is None else jnp.zeros_like(bias)))
    d_query = blocks.join_queries(d_query)
    d_key, d_value = blocks.join_keys(d_key), blocks.join_keys(d_value)
    return d_query.astype(dtype), d_key.astype(dtype), d_value.astype(dtype), d_bias, None


def _product(equation: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)


_attend.defvjp(_forward, _backward)
