"""Scalars a person reads, from the sums a device keeps."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct


class MetricSums(struct.PyTreeNode):
    """Sums since the last report; float32 scalars, tokens (which wrap around, see TokenCount) and steps int32."""

    objective: jax.Array  # what is minimised, times `normalizer`
    normalizer: jax.Array  # what the objective and the reports are divided by for means
    loss: jax.Array  # weighted cross-entropy in nats
    correct: jax.Array  # weighted hits
    weight: jax.Array  # loss weights
    bytes: jax.Array  # weighted bytes of the targets
    tokens: jax.Array  # targets of weight above zero
    grad_norm: jax.Array  # gradient norm, summed over steps
    steps: jax.Array  # updates
    reports: dict[str, jax.Array]  # what layers report (see layers.auxiliary), times `normalizer`

    @classmethod
    def zero(cls, reports: Iterable[str] = ()) -> "MetricSums":
        """Nothing counted yet."""
        f: Any = jnp.float32(0)
        i: Any = jnp.int32(0)
        zeros: Any = dict.fromkeys(reports, f)
        return cls(f, f, f, f, f, f, i, f, i, zeros)

    def __add__(self, other: "MetricSums") -> "MetricSums":
        return jax.tree.map(jnp.add, self, other)


class TokenCount:
    """Targets since the last report, exact though the device's count (`MetricSums.tokens`) wraps around at 2^32.

    It is read before 2^32 more targets are counted.
    """

    def __init__(self, total: int = 0, on_device: int = 0):
        """A count that stands at `total` when the device's stands at `on_device`."""
        self.total, self._on_device = total, on_device

    def read(self, on_device: int) -> None:
        """Adds what the device has counted since it was read last."""
        self.total += (on_device - self._on_device) % 2**32
        self._on_device = on_device


def language_scalars(sums: Mapping[str, Any], byte_ratio: float = 1.0) -> dict[str, float]:
    """Loss (nats per token), perplexity, bits per token, bits per byte, accuracy, objective, layers' reports.

    Args:
      sums: of a `MetricSums`, as numbers.
      byte_ratio: bytes of raw text per byte that was counted (`IndexedInput.byte_ratio`).

    `bits_per_byte` is left out where tokens stand for no text; all are left out where no target counted.
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
