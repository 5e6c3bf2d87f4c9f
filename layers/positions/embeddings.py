"""Position embeddings: rotary, learned, sinusoidal."""

from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from layers.errors import UsageError
from layers.specs import Specs
from layers.weights.initializers import Constant, Initializer
from layers.weights.weight import weight


def rotate(x: Float[Array, "b s n d"], positions: Int[Array, "b s"], base: float) -> Float[Array, "b s n d"]:
    """Applies rotary position embedding (Su et al. 2021, RoFormer, equation 34) in the half-split layout.

    Channels j < D/2 and j + D/2 are rotated together by the angle `position * base^(-2j/D)`; angles are in float32.

    Raises:
      UsageError: the number of channels is odd.
    """
    if x.shape[-1] % 2:
        raise UsageError(
            f"head_dim must be even for rotary positions, which rotate pairs of channels (got {x.shape[-1]})."
        )
    half = x.shape[-1] // 2
    frequency_d = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle_bsnd = positions[:, :, None, None].astype(jnp.float32) * frequency_d
    cos, sin = jnp.cos(angle_bsnd), jnp.sin(angle_bsnd)
    u, w = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    return jnp.concatenate([u * cos - w * sin, w * cos + u * sin], axis=-1).astype(x.dtype)


def sinusoids(positions: Int[Array, "*s"], dim: int, base: float) -> Float[Array, "*s m"]:
    """Returns sines, then cosines of each position at wavelengths from 2 pi to 2 pi * base, in float32."""
    half = dim // 2
    frequency_m = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = positions[..., None].astype(jnp.float32) * frequency_m
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)


class LearnedPositions(nn.Module):
    """A learned vector per position, added to the token embedding (Radford et al. 2018, section 4.1)."""

    SPECS: ClassVar[tuple[str, ...]] = ("position_tm",)

    specs: Specs
    max_length: int  # positions 0 ... max_length - 1 exist
    model_dim: int
    initializer: Initializer
    param_dtype: str = "float32"

    @nn.compact
    def __call__(self, positions: Int[Array, "b s"]) -> Float[Array, "b s m"]:
        shape = (self.max_length, self.model_dim)
        table_tm = weight(self, "position_tm", shape, init=self.initializer, role="embedding", fan_in=1)
        # "fill" makes positions beyond the table NaN, which stops a run; clamping would hide the error.
        return jnp.take(table_tm, positions, axis=0, mode="fill", fill_value=jnp.nan)


class SinusoidalPositions(nn.Module):
    """Fixed sines in the first half of the channels, cosines in the second (Vaswani et al. 2017, section 3.5)."""

    model_dim: int
    base: float = 10_000.0  # wavelengths range from 2 pi to 2 pi * base
    max_length: None = None  # no limit

    @nn.compact
    def __call__(self, positions: Int[Array, "b s"]) -> Float[Array, "b s m"]:
        return sinusoids(positions, self.model_dim, self.base)


class ScaledSinusoidalPositions(nn.Module):
    """Sinusoidal positions times one learned scalar, initially 0 (Hua et al. 2022, FLASH, appendix B)."""

    SPECS: ClassVar[tuple[str, ...]] = ("position_scale_",)

    specs: Specs
    model_dim: int
    base: float = 100_000.0  # wavelengths range from 2 pi to 2 pi * base
    max_length: None = None  # no limit
    param_dtype: str = "float32"

    @nn.compact
    def __call__(self, positions: Int[Array, "b s"]) -> Float[Array, "b s m"]:
        # A scalar, so no letters follow the last underscore. It has the role of the embedding, which it scales.
        scale = weight(self, "position_scale_", (), init=Constant(), role="embedding", fan_in=1)
        return scale * sinusoids(positions, self.model_dim, self.base)
