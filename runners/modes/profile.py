"""Times a few updates, and traces as many for Perfetto and TensorBoard."""

import dataclasses
from typing import ClassVar

from runners.options import option
from runners.request import ModeOptions, Request


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ModeOptions):
    """Flags of --mode=profile."""

    several_processes: ClassVar[bool] = True
    reads_train: ClassVar[bool] = True

    profile_steps: int = option("updates under the profiler", default=10)


def run(request: Request, options: Options) -> int:
    """Writes profile/ in the run folder; returns the exit code."""
    from runners.training.profile import profile

    session = request.session(options)
    return profile(session, request.open_workdir(session), options.profile_steps)
