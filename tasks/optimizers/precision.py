"""Dtypes of optimizer state. Optimizers receive gradients and weights in float32."""

import functools
import math
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

SlotDtype = Literal["float32", "bfloat16", "int8"]
BLOCK = 256  # most elements of the last dimension that share a scale
MIN_BLOCK = 16  # a row whose divisors are smaller is one block
MIN_SIZE = 4096  # elements of a weight, of one layer, whose slots have 8 bits; smaller ones keep float32
DECADES = 7  # powers of ten that 8 bits cover


class Quantized(struct.PyTreeNode):
    """An array in 8 bits per element: codes of a table, times a scale for each block of the last dimension."""

    codes: jax.Array  # uint8, the shape of the array
    scales: jax.Array  # float32, the largest absolute value of each block: the shape with fewer elements in the last


def store_moments(
    inner: optax.GradientTransformation, dtypes: Mapping[str, SlotDtype], rows: Any
) -> optax.GradientTransformation:
    """Returns `inner` with fields of its state stored in other dtypes; updates are computed in float32.

    "int8" quantizes blocks by a dynamic table (Dettmers et al. 2022, arXiv 2110.02861, section 2).

    Args:
      inner: a transformation whose state has these fields, in the tree structure of the weights.
      dtypes: the dtype of each field. Elements of `nu` are squares.
      rows: the WeightRows, in the tree structure of the weights.
    """

    def narrow(state: Any) -> Any:
        fields = {name: _narrow(rows, getattr(state, name), of, name == "nu") for name, of in dtypes.items()}
        return state._replace(**fields)

    def wide(state: Any) -> Any:
        return state._replace(**{name: _wide(getattr(state, name), name == "nu") for name in dtypes})

    def init(params: Any) -> Any:
        return narrow(inner.init(_cast(params, "float32")))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        updates, state = inner.update(updates, wide(state), params)
        return updates, narrow(state)

    return optax.GradientTransformation(init, update)


def _narrow(rows: Any, tree: Any, dtype: SlotDtype, squares: bool) -> Any:
    if dtype != "int8":
        return _cast(tree, dtype)
    # By the size of one layer, so that models of other depths have the same slots.
    one = lambda row, x: quantize(x, squares=squares) if math.prod(row.used) >= MIN_SIZE else x
    return jax.tree.map(one, rows, tree)


def _wide(tree: Any, squares: bool) -> Any:
    is_quantized = lambda node: isinstance(node, Quantized)
    one = lambda x: dequantize(x, squares=squares) if is_quantized(x) else x.astype(jnp.float32)
    return jax.tree.map(one, tree, is_leaf=is_quantized)


def quantize(x: jax.Array, *, squares: bool = False) -> Quantized:
    """Returns an array in 8 bits, each element rounded to the nearest value of the table times its block's scale.

    Args:
      x: float32, of at least one dimension.
      squares: elements are not negative, and positive ones do not become 0, because updates divide by their roots.
    """
    block = block_of(x.shape[-1])
    blocks = x.reshape(*x.shape[:-1], -1, block)
    scales = jnp.max(jnp.abs(blocks), axis=-1)
    relative = blocks / jnp.where(scales > 0, scales, 1.0)[..., None]
    values = table(squares)
    codes = jnp.searchsorted(jnp.asarray((values[1:] + values[:-1]) / 2), relative)
    if squares:
        codes = jnp.maximum(codes, relative > 0)
    return Quantized(codes.astype(jnp.uint8).reshape(x.shape), scales)


def dequantize(x: Quantized, *, squares: bool = False) -> jax.Array:
    """Returns the float32 array that `quantize` rounded."""
    values = jnp.asarray(table(squares))[x.codes]
    blocks = values.reshape(*x.scales.shape, -1)
    return (blocks * x.scales[..., None]).reshape(x.codes.shape)


def block_of(size: int) -> int:
    """Returns the number of elements that share a scale, in a last dimension of this size, which it divides.

    >>> block_of(1024), block_of(768), block_of(64), block_of(257)
    (256, 256, 64, 257)
    """
    largest = next(block for block in range(min(size, BLOCK), 0, -1) if size % block == 0)
    return largest if largest >= MIN_BLOCK else size


@functools.cache
def table(squares: bool) -> np.ndarray:
    """The 256 values of the dynamic table, ascending: signed, or from 0 to 1 for squares.

    The decade [10^(i - 7), 10^(i - 6)) has 2^i values of each sign, or 2^(i + 1) of squares, i = 0, ..., 6.
    """
    found = [0.0, 1.0]
    for i in range(DECADES):
        count = 2 ** (i + squares)
        middles = 0.1 + 0.9 * (np.arange(count) + 0.5) / count
        values = middles * 10.0 ** (i - DECADES + 1)
        found += [*values] if squares else [*values, *-values]
    return np.sort(np.array(found, np.float32))


class Master(struct.PyTreeNode):
    """Float32 master weights, and the state of the optimizer that updates them."""

    weights: Any
    inner: Any


def keep_master(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Updates float32 master copies of the weights, and sets the weights to the copies (Micikevicius et al. 2018)."""

    def init(params: Any) -> Any:
        weights = _cast(params, "float32")
        return Master(weights, inner.init(weights))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        updates, moved = inner.update(updates, state.inner, state.weights)
        weights = jax.tree.map(jnp.add, state.weights, updates)
        distance = jax.tree.map(jnp.subtract, weights, params)
        return distance, Master(weights, moved)

    return optax.GradientTransformation(init, update)


def _cast(tree: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(dtype), tree)
