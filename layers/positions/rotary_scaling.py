"""Changes of rotary frequencies that extend a model to longer rows: linear, Llama 3's, YaRN."""

import dataclasses
import math

import jax.numpy as jnp
from jaxtyping import Array, Float


@dataclasses.dataclass(frozen=True)
class RotaryScaling:
    """Divides all rotary frequencies by `factor` (Chen et al. 2023, section 2.3, position interpolation)."""

    factor: float  # longest row after the extension divided by the longest before

    @property
    def amplitude(self) -> float:
        """Factor on the rotated queries and on the rotated keys."""
        return 1.0

    def frequencies(self, frequency_d: Float[Array, " d"], base: float) -> Float[Array, " d"]:
        """Returns the scaled frequencies, in radians per position.

        Args:
          frequency_d: frequencies of the pairs of channels before scaling, base^(-j/D) for pair j of D.
          base: the rotary base.
        """
        del base
        return frequency_d / self.factor


@dataclasses.dataclass(frozen=True)
class Llama3Scaling(RotaryScaling):
    """Divides low frequencies, keeps high ones, and interpolates between them by frequency (Llama 3.1, its code).

    A frequency is low or high by the rotations that it makes over `length` positions.
    """

    length: int  # longest row before the extension
    low: float = 1.0  # frequencies with fewer rotations are divided by `factor`
    high: float = 4.0  # frequencies with more rotations are unchanged

    def frequencies(self, frequency_d: Float[Array, " d"], base: float) -> Float[Array, " d"]:
        del base
        rotations_d = self.length * frequency_d / (2 * math.pi)
        kept_d = jnp.clip((rotations_d - self.low) / (self.high - self.low), 0, 1)
        return kept_d * frequency_d + (1 - kept_d) * frequency_d / self.factor


@dataclasses.dataclass(frozen=True)
class YarnScaling(Llama3Scaling):
    """The same with interpolation by channel, and larger scores (Peng et al. 2023, YaRN, section 3.3).

    The first and last channel of the interpolation are rounded outwards, as in the authors' code.
    """

    high: float = 32.0
    attention_factor: float | None = None  # the amplitude; None is 0.1 ln(factor) + 1 (section 3.4)

    @property
    def amplitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * math.log(self.factor) + 1 if self.factor > 1 else 1.0

    def frequencies(self, frequency_d: Float[Array, " d"], base: float) -> Float[Array, " d"]:
        pairs = frequency_d.shape[0]
        channel = lambda rotations: pairs * math.log(self.length / (2 * math.pi * rotations)) / math.log(base)
        first = max(math.floor(channel(self.high)), 0)
        last = min(math.ceil(channel(self.low)), 2 * pairs - 1)
        last = first + 0.001 if first == last else last
        divided_d = jnp.clip((jnp.arange(pairs) - first) / (last - first), 0, 1)
        return (1 - divided_d) * frequency_d + divided_d * frequency_d / self.factor
