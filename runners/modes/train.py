"""Trains an experiment, or resumes its training."""

import dataclasses
from typing import ClassVar

from runners.options import option
from runners.request import ModeOptions, Request


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ModeOptions):
    """Flags of --mode=train."""

    several_processes: ClassVar[bool] = True
    saves_on_sigterm: ClassVar[bool] = True
    reads_train: ClassVar[bool] = True
    splits: ClassVar[tuple[str, ...]] = ("validation",)

    profile_at: int | None = option(
        "trace --profile_steps updates from this one on",
        metavar="STEP",
        advice="--mode=profile traces from its fourth update on.",
        default=None,
    )
    profile_steps: int = option("updates under the profiler", default=10)
    until: int | None = option("save and stop after this update", metavar="STEP", default=None)
    branch: str | None = option(
        "continue from a checkpoint of another run, which has the same updates up to there",
        metavar="RUN@STEP",
        advice="WARM_START takes the weights of another run only.",
        default=None,
    )


def run(request: Request, options: Options) -> int:
    """Trains in the run folder; returns the exit code."""
    from registry.runs.state import last_saved
    from runners.training.origins.branch import check_branch, require_branch_of
    from runners.training.origins.warm_start import check_warm_start
    from runners.training.train import TrainOptions, train
    from runners.training.workdir import sole_use

    session, flags = request.session(options), request.flags
    is_new, branch = last_saved(request.workdir) is None, None
    if options.branch is not None and not is_new:
        require_branch_of(options.branch, flags.workdir)
    elif options.branch is not None:
        branch = check_branch(session, options.branch, allow_changes=flags.allow_changes)
    elif is_new:
        check_warm_start(session, allow_changes=flags.allow_changes)
    chosen = TrainOptions(
        start=request.start,
        tensorboard=flags.tensorboard,
        wandb=flags.wandb,
        until=options.until,
        branch=branch,
        profile_at=options.profile_at,
        profile_steps=options.profile_steps,
        allow_changes=flags.allow_changes,
    )
    with sole_use(request.workdir, request.processes):
        return train(session, request.open_workdir(session), chosen)
    raise AssertionError  # unreachable: sole_use() does not suppress exceptions
