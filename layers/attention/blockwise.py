"""Attention over blocks of queries and keys: no array holds the scores of all pairs.

The forward pass keeps a running maximum, sum and weighted sum of values for each query (Rabe and Staats 2021, section
2); the backward pass computes each block of scores again (Dao et al. 2022, FlashAttention, algorithms 1 and 4). Blocks
in which no query sees a key are left out. If devices share a sequence, both passes go through the keys of all of them.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from layers.attention.block_pairs import Places
from layers.attention.blocks import Blocks, Keys, Others, Queries, Scores
from layers.attention.exchanges import Exchange, Sizes
from layers.attention.score_functions import has_row_sum, require_valid, unnormalized

LOWEST = float(np.finfo(np.float32).min)


def attend(
    how: Scores,
    exchange: Exchange,
    block: int,
    query: Float[Array, "b k g s d"],
    keys: Keys,
    bias: Float[Array, "k g w"] | None,
    others: Others,
) -> Float[Array, "b k g s e"]:
    """Returns the weighted values of each query, as the dense path of layers.attention.softmax does.

    Scores and sums are float32; the operands of products have the dtype of the query. The program has one loop over
    pairs of blocks in each pass, of 2 and 5 products.

    Args:
      how: from scores to weights.
      exchange: where the keys are.
      block: number of queries, and of keys, in a block; the dropped weights depend on it.
      query: already multiplied by the factor on the scores.
      keys: keys of shape (b, k, t, d), values (b, k, t, e), and their segments.
      bias: added to the scores, by distances in descending order from `others.first_distance`; it extends over a block
        of queries and one of keys more than the distances that occur (layers.positions.diagonals.distances).
      others: arrays without a gradient.

    Raises:
      UsageError: as in layers.attention.score_functions.require_valid.
    """
    require_valid(how.function, how.extra_logit, how.length)
    result: Any = _attend(how, exchange, block, query, keys, bias, others)
    return result


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _attend(how: Scores, exchange: Exchange, block: int, query: Any, keys: Keys, bias: Any, others: Others) -> Any:
    return _forward(how, exchange, block, query, keys, bias, others)[0]


def grouped(query: Float[Array, "b s n d"], keys: Keys) -> Float[Array, "b k g s d"]:
    """Groups heads of queries by their head of keys."""
    return jnp.moveaxis(query.reshape(*query.shape[:2], keys.key.shape[1], -1, query.shape[-1]), 1, 3)


def ungrouped(mixed: Float[Array, "b k g s e"]) -> Float[Array, "b s n e"]:
    """The inverse of `grouped`."""
    mixed = jnp.moveaxis(mixed, 3, 1)
    return mixed.reshape(*mixed.shape[:2], -1, mixed.shape[-1])


def _queries(exchange: Exchange, block: int, query: Any, others: Others) -> Queries:
    return Queries(query, block, exchange.query_starts(others, query.shape[3]), others.query_ids)


def _forward(how: Scores, exchange: Exchange, block: int, query: Any, keys: Keys, bias: Any, others: Others) -> Any:
    queries = _queries(exchange, block, query, others)
    rows = queries.blocks.shape[:-1]  # (i, b, k, g * q)
    is_softmax, extra = how.function == "softmax", how.extra_logit
    mixed = jnp.zeros((*rows, keys.value.shape[-1]), jnp.float32)
    peak = jnp.full(rows, LOWEST if extra is None else extra, jnp.float32)
    total = jnp.full(rows, 0.0 if extra is None else 1.0, jnp.float32)

    def visit(carry: Any, keys: Keys, places: Places) -> Any:
        blocks = Blocks(how, block, queries, keys, others, places)

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
            more = _product("bkrc,bkce->bkre", weights, blocks.value[j])
            return mixed.at[i].set(mixed[i] * shrunk[..., None] + more), peak, total

        return blocks.each(body, carry)

    carry = exchange.forward(visit, (mixed, peak, total), keys, Sizes.of(how, query.shape[3], block), others)
    mixed, peak, total = carry
    if how.length is not None and not has_row_sum(how.function):
        divisor = jnp.full(rows, how.length, jnp.float32)
    else:
        divisor = total if is_softmax else how.epsilon + total
    mixed = queries.join_groups(mixed / jnp.where(divisor == 0, 1, divisor)[..., None])
    mixed = mixed.astype(query.dtype)
    normalizer = peak + jnp.log(divisor) if is_softmax else divisor
    return mixed, (query, keys, bias, others, mixed, queries.join_groups(normalizer))


def _backward(how: Scores, exchange: Exchange, block: int, saved: Any, gradient: jax.Array) -> Any:
    query, keys, bias, others, mixed, normalizer = saved
    queries = _queries(exchange, block, query, others)
    gradients, normalizer = queries.split_groups(gradient), queries.split_groups(normalizer, padding=1)
    mean = jnp.sum(gradient.astype(jnp.float32) * mixed.astype(jnp.float32), axis=-1)
    mean = queries.split_groups(mean) if has_row_sum(how.function) else None
    dtype = query.dtype

    def visit(carry: Any, keys: Keys, places: Places) -> Any:
        blocks = Blocks(how, block, queries, keys, others, places)

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
            d_weights = blocks.dropped(_product("bkre,bkce->bkrc", gradients[i], blocks.value[j]), kept)
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
            d_key = d_key.at[j].add(_product("bkrc,bkrd->bkcd", d_scores, queries.blocks[i]))
            return d_query, d_key, d_value, d_bias

        zeros = [jnp.zeros(x.shape, jnp.float32) for x in (blocks.key, blocks.value)]
        d_query, d_key, d_value, d_bias = blocks.each(body, (carry[0], *zeros, carry[1]))
        return (d_query, d_bias), Keys(blocks.keys.join(d_key, 2), blocks.keys.join(d_value, 2))

    start = jnp.zeros(queries.blocks.shape, jnp.float32), None if bias is None else jnp.zeros_like(bias)
    (d_query, d_bias), d_keys = exchange.backward(visit, start, keys, Sizes.of(how, query.shape[3], block), others)
    d_keys = jax.tree.map(lambda x: x.astype(dtype), d_keys)
    return queries.join_groups(d_query).astype(dtype), d_keys, d_bias, None


def _product(equation: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)


_attend.defvjp(_forward, _backward)
