"""Scalars a person reads, from the sums a device keeps."""

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import struct


class MetricSums(struct.PyTreeNode):
    """Sums since the last report; float32 scalars, tokens and steps int32."""

    objective: jax.Array  # weighted objective
    loss: jax.Array  # weighted cross-entropy in nats
    correct: jax.Array  # weighted hits
    weight: jax.Array  # loss weights
    bytes: jax.Array  # weighted bytes of the targets
    tokens: jax.Array  # targets of weight above zero
    grad_norm: jax.Array  # gradient norm, summed over steps
    steps: jax.Array  # updates

    @classmethod
    def zero(cls) -> "MetricSums":
        """Nothing counted yet."""
        f, i = jnp.float32(0), jnp.int32(0)
        return cls(f, f, f, f, f, i, f, i)

    def __add__(self, other: "MetricSums") -> "MetricSums":
        return jax.tree.map(jnp.add, self, other)


def language_scalars(sums: Mapping[str, float]) -> dict[str, float]:
    """Loss (nats per token), perplexity, bits per token, bits per byte, accuracy, objective, from fetched sums.

    `bits_per_byte` is left out where tokens stand for no text; all are left out where no target counted.
    """
    weight = sums["weight"]
    if not weight:
        return {}
    loss = sums["loss"] / weight
    scalars = {
        "loss": loss,
        "objective": sums["objective"] / weight,
        "perplexity": math.exp(loss) if loss < 700 else math.inf,
        "bits_per_token": loss / math.log(2),
        "accuracy": sums["correct"] / weight,
    }
    if sums["bytes"]:
        scalars["bits_per_byte"] = sums["loss"] / math.log(2) / sums["bytes"]
    return scalars
