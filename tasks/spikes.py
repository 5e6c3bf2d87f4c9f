"""Spikes: updates that are dropped because their loss or gradient norm is far above those before."""

import dataclasses

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spikes:
    """A spike is a loss or a gradient norm more than `deviations` standard deviations above the mean of the last ones.

    Mean and deviation (of a sample: n - 1) are those of the finite values in the last `window` updates, dropped ones
    included, so that a lasting change is accepted. With fewer than half of them nothing is a spike (the rule of OLMo's
    SkipStepOptimizer: Team OLMo 2025, OLMo 2, section 3).
    """

    window: int = 128  # updates
    deviations: float = 6.0

    def __post_init__(self):
        if self.window < 4:
            raise ValueError(f"window of spikes must be at least 4 updates (got {self.window})")
        if not self.deviations > 0:
            raise ValueError(f"deviations of spikes must be above 0 (got {self.deviations:g})")

    def unknown(self) -> jax.Array:
        """Returns the values of no update: NaN, float32 (2, window)."""
        return jnp.full((2, self.window), jnp.nan, jnp.float32)

    def is_spike(self, recent: jax.Array, values: jax.Array) -> jax.Array:
        """Returns whether an update is a spike, bool ().

        Args:
          recent: values of the updates before, NaN if unknown: float32 (2, window).
          values: loss and gradient norm of this update: float32 (2,).
        """
        known = jnp.isfinite(recent)
        count = jnp.sum(known, axis=1)
        kept = jnp.where(known, recent, 0)
        mean = jnp.sum(kept, axis=1) / jnp.maximum(count, 1)
        squares = jnp.sum(jnp.where(known, (kept - mean[:, None]) ** 2, 0), axis=1)
        deviation = jnp.sqrt(squares / jnp.maximum(count - 1, 1))
        above = values - mean > self.deviations * deviation
        return jnp.any(above & (count >= max(2, self.window // 2)))

    def noted(self, recent: jax.Array, step: jax.Array, values: jax.Array) -> jax.Array:
        """Returns the last values with those of update `step`, counted from 0."""
        return recent.at[:, step % self.window].set(values)
