"""Evaluates a checkpoint on the validation split."""

import dataclasses
from typing import ClassVar

from runners.options import option
from runners.request import ModeOptions, Request


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ModeOptions):
    """Flags of --mode=validation and --mode=test."""

    several_processes: ClassVar[bool] = True

    checkpoint: str = option("last, best or a step", default="last")


def run(request: Request, options: Options) -> int:
    """Prints the metrics of the split that the mode is named after; returns the exit code."""
    from runners.training.evaluate_checkpoint import evaluate_checkpoint

    session = request.session(has_checkpoint=True)
    folder = request.open_workdir(session, record=False)
    return evaluate_checkpoint(session, folder, request.flags.mode, options.checkpoint)
