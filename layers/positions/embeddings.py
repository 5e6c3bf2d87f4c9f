"""Position embeddings: rotary, learned, sinusoidal."""

from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from layers.embedding import look_up
from layers.errors import UsageError
from layers.positions.rotary_scaling import RotaryScaling
from layers.specs import P, Specs
from layers.weights.initializers import Constant, Initializer
from layers.weights.weight import weight


def rotate(
    x: Float[Array, "b s n d"],
    positions: Int[Array, "b s"],
    base: float,
    *,
    share: float = 1.0,
    scaling: RotaryScaling | None = None,
) -> Float[Array, "b s n d"]:
    """Applies rotary position embedding (Su et al. 2021, RoFormer, equation 34) in the half-split layout.

    Of the first D channels, j < D/2 and j + D/2 are rotated together by the angle `position * base^(-2j/D)`; angles are
    in float32.

    Args:
      x: queries or keys.
      positions: position of each token in its row.
      base: base of the wavelengths.
      share: D over the number of channels, rounded down; the remaining channels are unchanged (Black et al. 2022,
        GPT-NeoX-20B, section 2.1.1).
      scaling: change of the frequencies; None for no change.

    Raises:
      UsageError: the number of rotated channels is odd or 0.
    """
    rotated = int(x.shape[-1] * share)
    if rotated % 2 or not rotated:
        raise UsageError(
            f"head_dim must be even for rotary positions, which rotate pairs of channels (got {x.shape[-1]})."
            if share == 1
            else f"rotary_share must select an even number of channels (got {share} of {x.shape[-1]}, {rotated})."
        )
    half = rotated // 2
    frequency_d = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    if scaling is not None:
        frequency_d = scaling.frequencies(frequency_d, base)
    angle_bsnd = positions[:, :, None, None].astype(jnp.float32) * frequency_d
    cos, sin = jnp.cos(angle_bsnd), jnp.sin(angle_bsnd)
    if scaling is not None and scaling.amplitude != 1:
        cos, sin = scaling.amplitude * cos, scaling.amplitude * sin
    u, w = x[..., :half].astype(jnp.float32), x[..., half:rotated].astype(jnp.float32)
    turned = jnp.concatenate([u * cos - w * sin, w * cos + u * sin], axis=-1).astype(x.dtype)
    return turned if rotated == x.shape[-1] else jnp.concatenate([turned, x[..., rotated:]], axis=-1)


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
    placement: P | None = None  # of positions, if each device looks up its own (look_up)
    param_dtype: str = "float32"

    @nn.compact
    def __call__(self, positions: Int[Array, "b s"]) -> Float[Array, "b s m"]:
        shape = (self.max_length, self.model_dim)
        table_tm = weight(self, "position_tm", shape, init=self.initializer, role="embedding", fan_in=1)
        # Positions beyond the table are NaN, which stops a run; clamping would hide the error.
        return look_up(table_tm, positions, str(table_tm.dtype), self.specs["position_tm"], self.placement)


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
