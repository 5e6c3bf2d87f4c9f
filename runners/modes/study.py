"""Trains the cases of a study, each as a run, and compares them."""

import dataclasses

from layers.errors import UsageError
from runners.options import option
from runners.request import ModeOptions, Request


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ModeOptions):
    """Flags of --mode=study."""

    workers: int = option("runs at a time on this machine", default=1)
    case: int | None = option("train this case only, as a task of an array of jobs", metavar="NUMBER", default=None)


def run(request: Request, options: Options) -> int:
    """Trains what is missing and writes study.json and study.html; returns the exit code."""
    from runners.studies.study import StudyOptions, study

    if options.workers < 1:
        raise UsageError(f"--workers must be at least 1 (got {options.workers}).")
    flags = request.flags
    if flags.exp is None:
        raise UsageError("--mode=study needs --exp=NAME, an entry with the knob STUDY.")
    shared = [f"--exp={flags.exp}", *(["--smoke"] if flags.smoke else []), "--no-tensorboard"]
    shared += [f"--import={module}" for module in flags.imports]
    shared += [f"--set={each}" for each in flags.set if not each.startswith("STUDY=")]
    if flags.host_devices is not None:
        shared.append(f"--host_devices={flags.host_devices}")
    chosen = StudyOptions(command=tuple(shared), workers=options.workers, case=options.case)
    return study(request.experiment, request.workdir, chosen)
