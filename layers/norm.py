"""RMSNorm and LayerNorm, with or without scale and bias; statistics in float32."""

import functools
from collections.abc import Callable
from typing import Any, ClassVar, Concatenate

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from layers.remat import Arguments, recomputed
from layers.specs import Specs
from layers.weights.initializers import Constant
from layers.weights.weight import weight


def _single_row_as_matrix(
    norm: Callable[Concatenate[jax.Array, Arguments], jax.Array],
) -> Callable[Concatenate[jax.Array, Arguments], jax.Array]:
    """Returns the norm that computes a batch of one row as a matrix.

    XLA (jaxlib 0.10.2) takes 8 times as long on a CPU for sums over the last of three dimensions if the first has one
    element.
    """

    @functools.wraps(norm)
    def norm_of(x: jax.Array, *arguments: Arguments.args, **options: Arguments.kwargs) -> jax.Array:
        is_single = x.ndim == 3 and x.shape[0] == 1
        y = norm(x.reshape(x.shape[1:]) if is_single else x, *arguments, **options)
        return y.reshape(x.shape)

    return norm_of


@_single_row_as_matrix
@recomputed
def rms_normalize(x: Float[Array, "... m"], epsilon: float | jax.Array) -> Float[Array, "... m"]:
    """Returns x / sqrt(mean(x^2) + epsilon) over the last dimension, in float32."""
    y = x.astype(jnp.float32)
    return y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + epsilon)


@_single_row_as_matrix
@recomputed
def _normed(x: Float[Array, "... m"], scale: jax.Array | None, bias: jax.Array | None, epsilon: float | jax.Array):
    y = rms_normalize(x, epsilon)
    y = y if scale is None else y * scale
    y = y if bias is None else y + bias
    return y.astype(x.dtype)


@_single_row_as_matrix
@recomputed
def _centred_and_normed(
    x: Float[Array, "... m"], scale: jax.Array | None, bias: jax.Array | None, epsilon: float | jax.Array
):
    y = x.astype(jnp.float32)
    y = y - jnp.mean(y, axis=-1, keepdims=True)
    return _normed(y, scale, bias, epsilon).astype(x.dtype)


def gain(module: nn.Module, key: str, shape: tuple[int, ...], *, one_plus: bool = False, **options: Any) -> jax.Array:
    """Returns the learned factors of a norm, initially 1: a weight, or 1 + a weight."""
    init = Constant(value=0.0 if one_plus else 1.0)
    w = weight(module, key, shape, init=init, role="scale", **options)
    return 1 + w.astype(jnp.float32) if one_plus else w


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + epsilon) * scale over the last dimension (Zhang and Sennrich 2019, equation 4)."""

    SPECS: ClassVar[tuple[str, ...]] = ("norm_scale_m", "norm_scale_", "norm_bias_m")

    specs: Specs
    epsilon: float = 1e-6  # added under the root
    use_scale: bool = True  # a learned factor per channel, initially 1
    scalar_scale: bool = False  # one learned factor for all channels instead
    one_plus_scale: bool = False  # the factor is 1 + the weight, which is initially 0 (Gemma Team 2024, their code)
    use_bias: bool = False  # a learned offset per channel, initially 0
    param_dtype: str = "float32"

    @nn.compact
    def __call__(self, x: Float[Array, "... m"]) -> Float[Array, "... m"]:
        scale = bias = None
        if self.use_scale:
            key, shape = ("norm_scale_", ()) if self.scalar_scale else ("norm_scale_m", x.shape[-1:])
            scale = gain(self, key, shape, one_plus=self.one_plus_scale, fan_in=1)
        if self.use_bias:
            bias = weight(self, "norm_bias_m", x.shape[-1:], init=Constant(), role="bias")
        return _normed(x, scale, bias, self.epsilon)


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the last dimension (Ba et al. 2016, equation 4)."""

    SPECS: ClassVar[tuple[str, ...]] = ("norm_scale_m", "norm_bias_m")

    specs: Specs
    epsilon: float = 1e-5  # added under the root
    use_scale: bool = True  # a learned factor per channel, initially 1
    use_bias: bool = True  # a learned offset per channel, initially 0
    param_dtype: str = "float32"

    @nn.compact
    def __call__(self, x: Float[Array, "... m"]) -> Float[Array, "... m"]:
        scale = bias = None
        if self.use_scale:
            scale = weight(self, "norm_scale_m", x.shape[-1:], init=Constant(value=1.0), role="scale")
        if self.use_bias:
            bias = weight(self, "norm_bias_m", x.shape[-1:], init=Constant(), role="bias")
        return _centred_and_normed(x, scale, bias, self.epsilon)
