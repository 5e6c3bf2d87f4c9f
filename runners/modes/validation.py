"""Evaluates a checkpoint on the validation split."""

import dataclasses
from typing import ClassVar

from runners.options import option
from runners.request import ModeOptions, Request


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ModeOptions):
    """Flags of --mode=validation."""

    several_processes: ClassVar[bool] = True
    splits: ClassVar[tuple[str, ...]] = ("validation",)

    checkpoint: str = option("last, best or a step", default="last")


def run(request: Request, options: Options) -> int:
    """Prints the metrics of the split; returns the exit code."""
    from runners.training.evaluate_checkpoint import evaluate_checkpoint

    session = request.session(options, checkpoint=options.checkpoint)
    folder = request.open_workdir(session, record=False)
    return evaluate_checkpoint(session, folder, options.splits[0], options.checkpoint)
