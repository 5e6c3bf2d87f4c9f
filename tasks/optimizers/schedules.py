"""Learning rate schedules, as factors on the peak learning rate."""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """A factor between 0 and 1 for update t = 0, 1, 2, ...

    All kinds first rise linearly from `start_factor` to 1 over `warmup_steps`; the fraction completed at update t is
    (t + first_step) / warmup_steps. After warm-up, `constant` stays at 1; `linear` and `cosine` fall to `end_factor` at
    `decay_steps` and stay there (cosine: Loshchilov and Hutter 2017, equation 5); `inverse_sqrt` is sqrt(k / t) from
    t = k on, with k = `timescale`, or warmup_steps if that is None (Vaswani et al. 2017, equation 3, with a peak of 1).
    """

    kind: Literal["constant", "linear", "cosine", "inverse_sqrt"] = "constant"
    warmup_steps: int = 0
    decay_steps: int | None = None  # update at which linear and cosine end, counted from 0; required for them
    end_factor: float = 0.0  # final factor of linear and cosine
    first_step: int = 1  # number of the first update in warm-up; 0 gives it rate 0, as in some reference codes
    start_factor: float = 0.0  # factor at the start of warm-up
    timescale: int | None = None  # updates before inverse_sqrt falls; None is warmup_steps

    def __post_init__(self):
        if self.kind in ("linear", "cosine") and (self.decay_steps is None or self.decay_steps <= self.warmup_steps):
            raise ValueError(
                f"decay_steps of a {self.kind} schedule must be above warmup_steps = {self.warmup_steps} (got "
                f"{self.decay_steps})"
            )

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Segment:
    """A part of a schedule, from the factor at its first update to `end_factor`.

    With x the fraction of its updates that are completed, (t - first) / steps, the factor has completed of its way:
    "linear" x; "cosine" (1 - cos(pi x)) / 2; "sqrt" sqrt(x) (Haegele et al. 2024, "1-sqrt"). "constant" does not move.
    """

    first: int  # its first update, counted from 0
    steps: int  # number of updates
    kind: Literal["constant", "linear", "cosine", "sqrt"]
    end_factor: float = 0.0  # without effect if constant

    def factor(self, t: jax.Array, start: jax.Array) -> jax.Array:
        """Returns the factor at update `t`, from `start` at the first one; the last value after the last update."""
        if self.kind == "constant":
            return jnp.broadcast_to(start, t.shape)
        x = jnp.clip((t - self.first) / self.steps, 0.0, 1.0)
        way = {"linear": lambda: x, "cosine": lambda: 0.5 * (1 - jnp.cos(jnp.pi * x)), "sqrt": lambda: jnp.sqrt(x)}
        return start + (self.end_factor - start) * way[self.kind]()


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhasedSchedule(Schedule):
    """A schedule that segments continue from the first update of the first of them on."""

    segments: tuple[Segment, ...]  # in order, each from the end of the one before

    def __call__(self, step: jax.Array | int) -> jax.Array:
        t = jnp.asarray(step, jnp.float32)
        factor = super().__call__(t)
        held = super().__call__(self.segments[0].first)
        for segment in self.segments:
            factor = jnp.where(t >= segment.first, segment.factor(t, held), factor)
            held = held if segment.kind == "constant" else jnp.float32(segment.end_factor)
        return factor
