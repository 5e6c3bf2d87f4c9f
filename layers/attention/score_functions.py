"""Functions from attention scores to the weights of values: softmax, and functions without a softmax."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from layers.errors import UsageError, did_you_mean
from layers.feed_forward.activations import squared_relu
from layers.remat import recomputed

SCORE_FUNCTIONS = (
    "softmax",  # with an extra logit z: exp(score) over the sum of all exp(score) and exp(z)
    "squared_relu",  # max(score, 0)^2 / length
    "elu_plus_1",  # (elu(score) + 1) / length
    "normalized_squared_relu",  # max(score, 0)^2 over (epsilon + the sum of its row)
    "normalized_elu_plus_1",  # (elu(score) + 1) over (epsilon + the sum of its row)
)


@recomputed
def masked(scores: Float[Array, "*b q t"], mask: Bool[Array, "*#b q t"]) -> Float[Array, "*b q t"]:
    """Returns the scores, with the lowest float at masked keys (mask False)."""
    return jnp.where(mask, scores, jnp.finfo(scores.dtype).min)


def value_weights(
    scores: Float[Array, "*b t"],
    function: str = "softmax",
    extra_logit: float | None = None,
    epsilon: float = 1e-6,
    length: int | None = None,
) -> Float[Array, "*b t"]:
    """Returns the weights of t values; a score equal to the lowest float marks a masked key.

    All but softmax are from the code of Lingle 2024 (arXiv 2404.05728).

    Raises:
      UsageError: as in `require_valid`.
    """
    require_valid(function, extra_logit, length)
    if function == "softmax":
        return _softmax(scores, extra_logit)
    weights = unnormalized(scores, function)
    if has_row_sum(function):
        return weights / (epsilon + jnp.sum(weights, axis=-1, keepdims=True))
    assert length is not None
    return weights / length


def require_valid(function: str, extra_logit: float | None, length: int | None) -> None:
    """Checks the arguments of `value_weights`.

    Raises:
      UsageError: `function` is unknown, `extra_logit` is set without softmax, or `score_length` is missing.
    """
    if function not in SCORE_FUNCTIONS:
        raise UsageError(f"Unknown score function '{function}'. {did_you_mean(function, SCORE_FUNCTIONS)}")
    if extra_logit is not None and function != "softmax":
        raise UsageError(f"extra_logit has no effect with score_function = '{function}'. Remove it, or use softmax.")
    if length is None and not has_row_sum(function):
        raise UsageError(f"score_function = '{function}' needs score_length. Set it.")


def unnormalized(scores: Float[Array, "*b t"], function: str) -> Float[Array, "*b t"]:
    """Returns the weights of a function other than softmax, before they are divided."""
    return jax.nn.elu(scores) + 1 if function.endswith("elu_plus_1") else squared_relu(jnp.maximum(scores, 0))


def has_row_sum(function: str) -> bool:
    """Returns whether weights are divided by the sum of their row."""
    return function == "softmax" or function.startswith("normalized")


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _softmax(scores: Float[Array, "*b t"], extra_logit: float | None) -> Float[Array, "*b t"]:
    if extra_logit is None:
        return jax.nn.softmax(scores, axis=-1)
    largest = jax.lax.stop_gradient(jnp.maximum(jnp.max(scores, axis=-1, keepdims=True), extra_logit))
    unnormalized = jnp.exp(scores - largest)
    return unnormalized / (jnp.sum(unnormalized, axis=-1, keepdims=True) + jnp.exp(extra_logit - largest))


@_softmax.defjvp
def _softmax_tangent(extra_logit: float | None, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    """Tangent computed from the output alone, so that the backward pass stores nothing else."""
    weights, change = _softmax(*primals, extra_logit), tangents[0]
    return weights, weights * (change - jnp.sum(weights * change, axis=-1, keepdims=True))
