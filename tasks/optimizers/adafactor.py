"""Adafactor with slots that are placed like their weights, and separate statistics for each layer of a stack."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from tasks.weight_table import WeightRow


class Slots(struct.PyTreeNode):
    """Second moments of one weight: `row` and `column` if it is factored, else `full`; the others are None."""

    row: jax.Array | None = None  # mean square over the largest dimension
    column: jax.Array | None = None  # mean square over the second largest
    full: jax.Array | None = None


class AdafactorState(struct.PyTreeNode):
    """Number of updates so far, and the slots in the tree structure of the weights."""

    count: jax.Array
    slots: Any


def factored_dims(row: WeightRow, min_dim: int) -> tuple[int, int] | None:
    """Returns the largest and second largest dimension of a weight (per layer if stacked); None if not factored.

    Among dimensions of equal size, the first counts as the larger.
    """
    shape = row.shape[row.stacked :]
    if len(shape) < 2:
        return None
    largest, second = (int(dim) for dim in np.argsort([-size for size in shape], kind="stable")[:2])
    if shape[second] < min_dim:
        return None
    return row.stacked + largest, row.stacked + second


def scale_by_adafactor(
    rows: Any,
    min_dim: int = 128,
    exponent: float = 0.8,
    clip: float = 1.0,
    scale_floor: Callable[[WeightRow], float] = lambda row: 1e-3,
) -> optax.GradientTransformation:
    """Adafactor without first moment (Shazeer and Stern 2018, algorithm 4), for the weights of `rows`.

    With t = 1, 2, ..., b = 1 - t^-exponent and q = g^2 + 1e-30: row <- b row + (1 - b) mean(q over the largest
    dimension), column likewise over the second, u = g / sqrt(row / mean(row) * column); or full <- b full + (1 - b) q
    and u = g / sqrt(full) if the second largest dimension is below `min_dim`. Then u <- u / max(1, rms(u) / clip),
    and u <- u * max(rms(weight), scale_floor(row)). Each layer of a stack is a separate weight: no mean spans
    layers. Arithmetic is in float32 for any gradient dtype.

    Args:
      rows: the WeightRows, in the tree structure of the weights.
      min_dim: weights whose second largest dimension is smaller are not factored.
      exponent: decay rate of the second moments.
      clip: largest root mean square of an update.
      scale_floor: lower bound on the root mean square of a weight, which scales its update.
    """

    def init(params: Any) -> Any:
        del params
        return AdafactorState(jnp.int32(0), jax.tree.map(lambda row: _empty(row, min_dim), rows))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        decay = 1 - (state.count + 1).astype(jnp.float32) ** -exponent

        def one(row: WeightRow, g: jax.Array, slots: Slots, w: jax.Array) -> tuple[jax.Array, Slots]:
            own = tuple(range(row.stacked, len(row.shape)))  # the dimensions of one layer
            g = g.astype(jnp.float32)
            factor, slots = _precondition(g, slots, decay, factored_dims(row, min_dim), own)
            u = g * factor
            u /= jnp.maximum(1.0, _rms(u, own) / clip)
            return u * jnp.maximum(_rms(w.astype(jnp.float32), own), scale_floor(row)), slots

        pairs = jax.tree.map(one, rows, updates, state.slots, params)
        first, second = (jax.tree.map(lambda _, pair, i=i: pair[i], rows, pairs) for i in (0, 1))
        return first, AdafactorState(state.count + 1, second)

    return optax.GradientTransformation(init, update)


def _empty(row: WeightRow, min_dim: int) -> Slots:
    dims = factored_dims(row, min_dim)
    if dims is None:
        return Slots(full=jnp.zeros(row.shape))
    largest, second = (jnp.zeros(tuple(np.delete(row.shape, dim))) for dim in dims)
    return Slots(row=largest, column=second)


def _precondition(g, slots: Slots, decay, dims: tuple[int, int] | None, own: tuple[int, ...]) -> tuple[Any, Slots]:
    """Returns the inverse root of the second moment, and the updated slots."""
    square = jnp.square(g) + 1e-30
    if dims is None:
        full = decay * slots.full + (1 - decay) * square
        return jax.lax.rsqrt(full), Slots(full=full)
    largest, second = dims
    row = decay * slots.row + (1 - decay) * jnp.mean(square, axis=largest)
    column = decay * slots.column + (1 - decay) * jnp.mean(square, axis=second)
    # Index of the second largest dimension after the largest is reduced.
    place = second - (second > largest)
    relative = row / jnp.mean(row, axis=place, keepdims=True)
    factor = jnp.expand_dims(jax.lax.rsqrt(relative), largest) * jnp.expand_dims(jax.lax.rsqrt(column), second)
    return factor, Slots(row=row, column=column)


def _rms(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    return jnp.sqrt(jnp.mean(jnp.square(x), axis=axes, keepdims=True))
