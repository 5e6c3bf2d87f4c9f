"""Averages of the weights over updates, which are evaluated in place of the weights: exponential, or schedule-free."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct


class Average(struct.PyTreeNode):
    """The exponential moving average of the weights in float32, and the state of the optimizer that updates them."""

    count: jax.Array  # int32: number of updates so far
    weights: Any
    inner: Any


def keep_average(inner: optax.GradientTransformation, decay: float) -> optax.GradientTransformation:
    """Keeps an exponential moving average of the weights that `inner` updates (Polyak and Juditsky 1992).

    After update t = 0, 1, ...: average <- d average + (1 - d) weights, with d = min(decay, (1 + t) / (10 + t)), so the
    initial weights soon have little weight. Weights are averaged before they are rounded to their dtype.
    """

    def init(params: Any) -> Any:
        return Average(jnp.int32(0), jax.tree.map(lambda w: w.astype(jnp.float32), params), inner.init(params))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        updates, moved = inner.update(updates, state.inner, params)
        count = state.count.astype(jnp.float32)
        rate = 1 - jnp.minimum(decay, (1 + count) / (10 + count))
        step = lambda average, w, u: average + rate * (w + u - average)
        return updates, Average(state.count + 1, jax.tree.map(step, state.weights, params, updates), moved)

    return optax.GradientTransformation(init, update)
