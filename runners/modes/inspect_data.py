"""Shows the data of an experiment: decoded rows, lengths, padding, speed."""

import dataclasses

from runners.request import ModeOptions, Request


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ModeOptions):
    """--mode=inspect_data has no flags of its own."""


def run(request: Request, options: Options) -> int:
    """Prints a summary and writes a page into the run folder; returns the exit code."""
    from runners.data.inspect_data import inspect_data

    del options
    return inspect_data(request.experiment, request.workdir)
