"""Element-wise nonlinearities, selected by name."""

from collections.abc import Callable

import jax

from layers.errors import UsageError, did_you_mean
from layers.remat import recomputed


def squared_relu(x: jax.Array) -> jax.Array:
    """max(x, 0)^2 (So et al. 2021, Primer, section 4.1)."""
    return jax.numpy.square(jax.nn.relu(x))


def gelu_tanh(x: jax.Array) -> jax.Array:
    """GELU in the tanh approximation (Hendrycks and Gimpel 2016, section 2), as used by GPT-2."""
    return jax.nn.gelu(x, approximate=True)


def gelu_erf(x: jax.Array) -> jax.Array:
    """x * Phi(x) with the exact normal distribution function (Hendrycks and Gimpel 2016, equation 1)."""
    return jax.nn.gelu(x, approximate=False)


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "squared_relu": recomputed(squared_relu),
    "gelu_tanh": recomputed(gelu_tanh),
    "gelu_erf": recomputed(gelu_erf),
    "silu": recomputed(jax.nn.silu),
}


def activation(name: str) -> Callable[[jax.Array], jax.Array]:
    """Returns the function of that name; raises a UsageError with the closest names if it is unknown."""
    if name not in ACTIVATIONS:
        raise UsageError(f"Unknown activation '{name}'. {did_you_mean(name, ACTIVATIONS)}")
    return ACTIVATIONS[name]
