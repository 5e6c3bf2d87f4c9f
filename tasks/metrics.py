"""Metrics: sums accumulated on the device, and the scalars computed from them."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct


class MetricSums(struct.PyTreeNode):
    """Sums since the last report: float32 scalars; `tokens` (wraps around, see TokenCount) and `steps` are int32."""

    objective: jax.Array  # the minimised objective times `normalizer`
    normalizer: jax.Array  # divisor of `objective` and `reports` for their means
    loss: jax.Array  # weighted cross-entropy in nats
    correct: jax.Array  # weighted count of correct predictions
    weight: jax.Array  # sum of loss weights
    bytes: jax.Array  # weighted bytes of the targets
    tokens: jax.Array  # number of targets of weight above zero
    grad_norm: jax.Array  # gradient norm, summed over steps
    steps: jax.Array  # number of updates
    reports: dict[str, jax.Array]  # metrics reported by layers (see layers.auxiliary), times `normalizer`

    @classmethod
    def zero(cls, reports: Iterable[str] = ()) -> "MetricSums":
        """Returns sums of zero; `reports` are the names of the layers' metrics."""
        f: Any = jnp.float32(0)
        i: Any = jnp.int32(0)
        zeros: Any = dict.fromkeys(reports, f)
        return cls(f, f, f, f, f, f, i, f, i, zeros)

    def __add__(self, other: "MetricSums") -> "MetricSums":
        return jax.tree.map(jnp.add, self, other)


class TokenCount:
    """Number of targets in total, exact although the device's counter (`MetricSums.tokens`) wraps around at 2^32.

    Call `read` before the device counts 2^32 more targets.
    """

    def __init__(self, total: int = 0, on_device: int = 0):
        """Starts at `total` targets, when the device's counter is `on_device`."""
        self.total, self._on_device = total, on_device

    def read(self, on_device: int) -> None:
        """Adds the targets that the device has counted since the last read."""
        self.total += (on_device - self._on_device) % 2**32
        self._on_device = on_device


def language_scalars(sums: Mapping[str, Any], byte_ratio: float = 1.0) -> dict[str, float]:
    """Returns loss (nats per token), perplexity, bits per token and byte, accuracy, objective, layers' reports.

    Args:
      sums: the fields of a `MetricSums`, as numbers.
      byte_ratio: bytes of raw text per counted byte (`IndexedInput.byte_ratio`).

    `bits_per_byte` is omitted if tokens do not represent text; the result is empty if the sum of weights is 0.
    """
    weight = sums["weight"]
    if not weight:
        return {}
    loss = sums["loss"] / weight
    scalars = {
        "loss": loss,
        "objective": sums["objective"] / sums["normalizer"],
        "perplexity": math.exp(loss) if loss < 700 else math.inf,
        "bits_per_token": loss / math.log(2),
        "accuracy": sums["correct"] / weight,
        **{name: total / sums["normalizer"] for name, total in sums["reports"].items()},
    }
    if sums["bytes"]:
        scalars["bits_per_byte"] = sums["loss"] / math.log(2) / (sums["bytes"] * byte_ratio)
    return scalars
