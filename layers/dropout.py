"""Dropout, active only if the caller passes random numbers for it."""

import flax.linen as nn
import jax

from layers.errors import UsageError


def dropout(module: nn.Module, x: jax.Array, rate: float, stream: str = "dropout") -> jax.Array:
    """Zeroes each element with probability `rate` and scales the rest by 1 / (1 - rate) (Srivastava et al. 2014).

    Without random numbers (evaluation, decoding), or with rate 0, returns `x`. The stream "dropout" changes with every
    update; "sequence" is constant over all updates that a row is cut into.

    Raises:
      UsageError: `rate` is not in [0, 1).
    """
    if not 0 <= rate < 1:
        raise UsageError(f"The dropout rate must be at least 0 and below 1 (got {rate}).")
    if rate == 0 or not module.has_rng(stream):
        return x
    keep = jax.random.bernoulli(module.make_rng(stream), 1 - rate, x.shape)
    return jax.numpy.where(keep, x / (1 - rate), 0).astype(x.dtype)
