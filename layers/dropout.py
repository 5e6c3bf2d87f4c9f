"""Dropout that is on exactly when the caller hands in random numbers for it."""

import flax.linen as nn
import jax

from layers.errors import UsageError


def dropout(module: nn.Module, x: jax.Array, rate: float, stream: str = "dropout") -> jax.Array:
    """Zeroes each element with probability `rate` and scales the rest by 1 / (1 - rate) (Srivastava et al. 2014).

    Without random numbers (evaluation, decoding), or with rate 0, returns `x`. The stream "dropout" is new in every
    update, "sequence" the same in all updates that a row is cut into.
    """
    if not 0 <= rate < 1:
        raise UsageError(f"A dropout rate of {rate} makes no sense: it is at least 0 and below 1.")
    if rate == 0 or not module.has_rng(stream):
        return x
    keep = jax.random.bernoulli(module.make_rng(stream), 1 - rate, x.shape)
    return jax.numpy.where(keep, x / (1 - rate), 0).astype(x.dtype)
