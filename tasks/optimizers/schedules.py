"""How the learning rate moves over the run, as a factor on its peak."""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """A factor between 0 and 1 for update t = 0, 1, 2, ...

    All kinds rise linearly over `warmup_steps` first, from `start_factor` to 1: (t + first_step) / warmup_steps is how
    far. Behind that: `constant` stays at
    1; `linear` and `cosine` fall to `end_factor` at `decay_steps` and stay there (cosine: Loshchilov and Hutter 2017,
    equation 5); `inverse_sqrt` is sqrt(k / t) from t = k on, k being `timescale`, or warmup_steps where that is None
    (Vaswani et al. 2017, equation 3, with a peak of 1).
    """

    kind: Literal["constant", "linear", "cosine", "inverse_sqrt"] = "constant"
    warmup_steps: int = 0
    decay_steps: int | None = None  # update at which linear and cosine end, counted from 0; they need it
    end_factor: float = 0.0  # where linear and cosine end
    first_step: int = 1  # what the first update counts as in warm-up; 0 gives it rate 0, as some references do
    start_factor: float = 0.0  # where warm-up starts
    timescale: int | None = None  # updates before inverse_sqrt falls; None is warmup_steps

    def __post_init__(self):
        if self.kind in ("linear", "cosine") and (self.decay_steps is None or self.decay_steps <= self.warmup_steps):
            raise ValueError(f"a {self.kind} schedule needs decay_steps above warmup_steps = {self.warmup_steps}")

    def __call__(self, step: jax.Array | int) -> jax.Array:
        t = jnp.asarray(step, jnp.float32)
        rise = jnp.minimum(1.0, (t + self.first_step) / self.warmup_steps) if self.warmup_steps else jnp.ones_like(t)
        rise = self.start_factor + (1 - self.start_factor) * rise
        if self.kind == "constant":
            return rise
        if self.kind == "inverse_sqrt":
            k = max(1, self.warmup_steps if self.timescale is None else self.timescale)
            return rise * jnp.sqrt(k / jnp.maximum(t, k))
        end = self.decay_steps or 0
        done = jnp.clip((t - self.warmup_steps) / (end - self.warmup_steps), 0.0, 1.0)
        left = 1 - done if self.kind == "linear" else 0.5 * (1 + jnp.cos(jnp.pi * done))
        return rise * (self.end_factor + (1 - self.end_factor) * left)
