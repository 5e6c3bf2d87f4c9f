"""Trains the cases of a study, each as a run, and compares them."""

import argparse
import dataclasses
from typing import TYPE_CHECKING

from layers.errors import UsageError
from runners.flags import given_module_flags
from runners.modes import train
from runners.options import option
from runners.request import ModeOptions, Request

if TYPE_CHECKING:  # these import jax
    from registry.experiment import Experiment
    from runners.studies.cases import Case
    from runners.studies.runs import RunOptions, Runs


@dataclasses.dataclass(frozen=True, kw_only=True)
class CaseOptions(ModeOptions):
    """Flags of the modes that train many runs."""

    workers: int | None = option(
        "runs at a time on this machine; 1. 0 only compares those that have been trained", default=None
    )
    run: int | None = option("train this run only, as a task of an array of jobs", metavar="NUMBER", default=None)

    # A single run is trained like one of --mode=train.
    @property
    def several_processes(self) -> bool:
        return self.run is not None

    @property
    def saves_on_sigterm(self) -> bool:
        return self.run is not None

    @property
    def is_one_job(self) -> bool:
        """Whether flags choose what a process trains, so that no array of jobs is needed."""
        return self.run is not None or self.workers is not None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(CaseOptions):
    """Flags of --mode=study."""

    rung: int = option("the rung of --run", metavar="NUMBER", default=0)


def run(request: Request, options: Options) -> int:
    """Trains what is missing and writes study.json and study.html; returns the exit code."""
    from runners.studies.runs import Runs
    from runners.studies.study import run_of, study

    shared = shared_options(request, options)
    if options.run is None:
        return study(request.experiment, request.workdir, shared)
    runs = Runs(request.workdir, shared)
    return train_run(request, runs, *run_of(request.experiment, runs, number=options.run, rung=options.rung))


def arrays(experiment: "Experiment", options: Options) -> tuple[int, ...]:
    """Returns how many runs each rung has, for arrays of jobs; none if flags choose the runs."""
    from runners.studies.cases import study_of

    if options.is_one_job:
        return ()
    plan = study_of(experiment)
    return tuple(count * plan.seeds for count in plan.cases_of_rungs())


def shared_options(request: Request, options: CaseOptions) -> "RunOptions":
    """Returns how the processes of runs are started."""
    from registry.experiment import cls_key
    from runners.studies.runs import RunOptions

    flags, workers = request.flags, 1 if options.workers is None else options.workers
    if workers < 0:
        raise UsageError(f"--workers must be at least 0 (got {workers}).")
    if flags.exp is None:
        raise UsageError(f"--mode={flags.mode} needs --exp=NAME.")
    shared = [f"--exp={flags.exp}", *(["--smoke"] if flags.smoke else []), "--no-tensorboard"]
    shared += [f"--import={module}" for module in flags.imports] + given_module_flags()
    shared += ["--allow_changes"] if flags.allow_changes else []
    shared += [f"--wandb={flags.wandb}"] if flags.wandb is not None else []
    if flags.host_devices is not None:
        shared.append(f"--host_devices={flags.host_devices}")
    sets = tuple(each for each in flags.set if not each.startswith("STUDY="))
    entry = cls_key(type(request.experiment))
    return RunOptions(exp=entry, smoke=flags.smoke, shared=tuple(shared), sets=sets, workers=workers)


def train_run(request: Request, runs: "Runs", case: "Case", seed: int, end: int) -> int:
    """Trains a run of a case up to a step in this process; returns its exit code."""
    from registry.resolve import resolve

    flags = argparse.Namespace(**vars(request.flags))
    flags.mode, flags.tensorboard, flags.workdir = "train", False, str(case.folder(runs.folder, seed))
    flags.set = [*runs.options.sets, *case.overrides_of(seed)]
    flags.command = ("python", "-m", "runners.main", *runs.flags_of(case, seed, end))
    experiment = resolve(flags.exp, flags.set, smoke=flags.smoke, imports=flags.imports)
    chosen = train.Options(until=None if end == case.steps else end)
    return train.run(Request(experiment, flags, request.processes), chosen)
