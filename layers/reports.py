"""What a layer says beside its output: terms of the objective, and numbers for the log."""

from typing import Any

import jax

LOSSES = "losses"  # collection of terms that the task adds to its objective
OVERHEAD = "overhead"  # named scope of products that move data and are no part of the model's work (see runners.flops)
METRICS = "metrics"  # collection of numbers that the task averages over layers and logs


def add_loss(module: Any, name: str, value: jax.Array) -> None:
    """Adds the scalar `value`, its factor included, to the objective; lost where the caller does not collect it."""
    if not module.is_initializing():
        module.sow(LOSSES, name, value, reduce_fn=lambda total, new: total + new, init_fn=lambda: 0.0)


def add_metric(module: Any, name: str, value: jax.Array) -> None:
    """Reports the scalar `value` under `name`; lost where the caller does not collect it."""
    if not module.is_initializing():
        module.sow(METRICS, name, jax.lax.stop_gradient(value), reduce_fn=lambda _, new: new, init_fn=lambda: 0.0)
