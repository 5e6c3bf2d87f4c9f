"""The scalars that training logs for a window of updates."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from runners.session import Session
from runners.training.checkpoints import path_name
from tasks.metrics import language_scalars


def window_scalars(
    session: Session,
    totals: Mapping[str, Any],
    shapes: Mapping[tuple[int, int], int],
    *,
    step: int,
    steps: int,
    seconds: float,
    norm: float,
    tokens_seen: int,
    flops: int | None,
    skipped: int,
) -> dict[str, float]:
    """Returns the scalars of a line of training in metrics.jsonl.

    Args:
      session: that of the phase of the updates.
      totals: the fields of the window's MetricSums, as numbers.
      shapes: number of updates by (rows, positions) of their batches, in order.
      step: the last update.
      steps: number of updates.
      seconds: the time that they took.
      norm: of all weights.
      tokens_seen: targets since the run began.
      flops: of all updates since the run began; None if unknown.
      skipped: updates dropped since the run began.
    """
    positions = sum(count * rows * length for (rows, length), count in shapes.items())
    task, source = session.task, session.train.input
    scalars = {
        **language_scalars(totals, source.byte_ratio),
        "grad_norm": totals["grad_norm"] / max(totals["steps"], 1),
        "param_norm": norm,
        "learning_rate": session.functions.rate_at(step - 1).item(),
        "tokens_seen": tokens_seen,
        "tokens_per_second": positions / seconds,
        "steps_per_second": steps / seconds,
    }
    utilization = session.throughput.mfu(shapes, seconds)
    optional = {
        "flops": flops,
        "sequence_length": list(shapes)[-1][1] if source.short_batches or source.borders else None,
        "skipped_updates": skipped if task.non_finite == "skip" or task.spikes is not None else None,
        "mfu": utilization,
    }
    return scalars | {name: value for name, value in optional.items() if value is not None}


def weight_scalars(params: Any, changes: np.ndarray) -> dict[str, float]:
    """Returns the metrics of each weight, `norm/PATH` and `update_ratio/PATH`, from CompiledFunctions.changes_of."""
    names = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    return {
        f"{metric}/{name}": float(value)
        for name, of_weight in zip(names, changes, strict=True)
        for metric, value in zip(("norm", "update_ratio"), of_weight, strict=True)
    }
