"""RMSNorm and LayerNorm, with or without scale and bias; statistics in float32."""

from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from layers.remat import recomputed
from layers.specs import Specs
from layers.weights.initializers import Constant
from layers.weights.weight import weight


@recomputed
def rms_normalize(x: Float[Array, "... m"], epsilon: float | jax.Array) -> Float[Array, "... m"]:
    """Returns x / sqrt(mean(x^2) + epsilon) over the last dimension, in float32."""
    y = x.astype(jnp.float32)
    return y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + epsilon)


@recomputed
def _normed(x: Float[Array, "... m"], scale: jax.Array | None, bias: jax.Array | None, epsilon: float | jax.Array):
    y = rms_normalize(x, epsilon)
    y = y if scale is None else y * scale
    y = y if bias is None else y + bias
    return y.astype(x.dtype)


@recomputed
def _centred_and_normed(
    x: Float[Array, "... m"], scale: jax.Array | None, bias: jax.Array | None, epsilon: float | jax.Array
):
    y = x.astype(jnp.float32)
    y = y - jnp.mean(y, axis=-1, keepdims=True)
    return _normed(y, scale, bias, epsilon).astype(x.dtype)


def _single_row_as_matrix(norm: Any, x: Float[Array, "... m"], *arguments: Any) -> Float[Array, "... m"]:
    """Returns `norm(x, ...)`; a batch of one row is computed as a matrix.

    XLA (jaxlib 0.10.2) takes 8 times as long on a CPU for sums over the last of three dimensions if the first has one
    element.
    """
    is_single = x.ndim == 3 and x.shape[0] == 1
    return norm(x.reshape(x.shape[1:]), *arguments).reshape(x.shape) if is_single else norm(x, *arguments)


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
        return _single_row_as_matrix(_normed, x, scale, bias, self.epsilon)


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
        return _single_row_as_matrix(_centred_and_normed, x, scale, bias, self.epsilon)
