"""Evaluation on a held-out split."""

import dataclasses
from typing import Any

import jax

from layers.errors import UsageError, did_you_mean
from runners.session import Session
from tasks.metrics import MetricSums, language_scalars


def evaluate(session: Session, variables: Any, split: str) -> dict[str, float]:
    """Returns the metrics of one pass over a split's input.

    Raises:
      UsageError: the experiment's Test() lacks the split, or its input is infinite.
    """
    inputs = session.test.inputs
    if split not in inputs:
        raise UsageError(f"Test() of {session.name} has no split '{split}'. {did_you_mean(split, inputs)}")
    if inputs[split].num_batches() is None:
        raise UsageError(f"test.inputs.{split} is infinite. Make it finite (shuffle=false for text).")
    total = session.task.zero_sums()
    for batch, _ in session.host_batches.iterate(inputs[split]):
        total = session.settle(total + session.functions.metrics_of(variables, batch))
    return language_scalars(fetch(total), inputs[split].byte_ratio)


def fetch(sums: MetricSums) -> dict[str, Any]:
    """Returns the sums as Python numbers; waits for the device."""
    return dataclasses.asdict(jax.tree.map(lambda leaf: leaf.item(), sums))
