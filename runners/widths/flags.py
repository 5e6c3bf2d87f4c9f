"""Shared flags of the modes over several widths, and their checks."""

import dataclasses
from typing import TYPE_CHECKING

from layers.errors import UsageError
from runners.options import option
from runners.request import ModeOptions

if TYPE_CHECKING:  # imports jax
    from registry.experiment import Experiment


@dataclasses.dataclass(frozen=True, kw_only=True)
class WidthOptions(ModeOptions):
    """Flags of the modes over several widths."""

    widths: str | None = option(
        "values of MODEL_DIM; by default 1, 2 and 4 times BASE_WIDTH", metavar="64,128,256", default=None
    )
    seeds: int | None = option("seeds to average over; by default 1", advice="Set SEED.", default=None)


def require_initial_weights(experiment: "Experiment", mode: str) -> None:
    """Raises a UsageError for an experiment that starts from the weights of another run."""
    if (folder := experiment.knobs().get("WARM_START")) is not None:
        raise UsageError(f"WARM_START has no effect with --mode={mode} (got {folder}). Remove it.")


def require_counts(**counts: int | None) -> None:
    """Raises a UsageError for a flag whose number is smaller than 1."""
    for name, count in counts.items():
        if count is not None and count < 1:
            raise UsageError(f"--{name} must be at least 1 (got {count}).")
