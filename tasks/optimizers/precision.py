"""Dtypes of optimizer state. Optimizers receive gradients and weights in float32."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct


def store_moments(adam: optax.GradientTransformation, first: str, second: str) -> optax.GradientTransformation:
    """Returns `optax.scale_by_adam` with moments stored in these dtypes, whatever the dtype of the weights."""

    def cast(state: Any, first: Any, second: Any) -> Any:
        return state._replace(mu=_cast(state.mu, first), nu=_cast(state.nu, second))

    def init(params: Any) -> Any:
        return cast(adam.init(params), first, second)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        updates, state = adam.update(updates, cast(state, "float32", "float32"), params)
        return updates, cast(state, first, second)

    return optax.GradientTransformation(init, update)


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
