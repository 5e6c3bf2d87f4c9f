"""The command `python -m launch`."""

import dataclasses
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from launch import jobs, jobset, local, mpirun, slurm, tpu
from launch.runner_flags import checked, require_shared
from layers.errors import UsageError, did_you_mean
from runners.flags import Parser, exit_code
from runners.options import add_options

USAGE = """python -m launch TARGET [options] -- RUNNER FLAGS

TARGET: local | slurm | mpirun | jobset | tpu ACTION | tpu queue ACTION
`python -m launch TARGET --help` lists its options. docs/howto/launch.md describes each target."""

RENDER: dict[str, tuple[type[jobs.Job], Callable[..., Path]]] = {
    "slurm": (jobs.Slurm, slurm.render),
    "mpirun": (jobs.Mpirun, mpirun.render),
    "jobset": (jobs.JobSet, jobset.render),
    "tpu create": (jobs.NewTpu, tpu.create),
    "tpu install": (jobs.Installation, tpu.install),
    "tpu run": (jobs.TpuRun, tpu.run),
    "tpu attach": (jobs.Watch, tpu.attach),
    "tpu logs": (jobs.Watch, tpu.logs),
    "tpu kill": (jobs.Stop, tpu.kill),
    "tpu delete": (jobs.Tpu, tpu.delete),
    "tpu queue create": (jobs.QueuedTpu, tpu.queue_create),
    "tpu queue state": (jobs.Tpu, tpu.queue_state),
    "tpu queue delete": (jobs.Tpu, tpu.queue_delete),
}
TARGETS = {"local": jobs.Local, **{name: cls for name, (cls, _) in RENDER.items()}}
WITH_RUNNER = ("local", "slurm", "mpirun", "jobset", "tpu run")


def parse(arguments: Sequence[str]) -> tuple[str, jobs.Job]:
    """Returns the target and its job.

    Raises:
      UsageError: an unknown target or option, a wrong value, or flags that the runner would refuse.
    """
    arguments = list(arguments)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    own, flags = arguments[:end], tuple(arguments[end + 1 :])
    target, own = _target(own)
    cls = TARGETS[target]
    parser = Parser(f"launch {target}", cls.__doc__)
    add_options(parser, cls)
    given = vars(parser.parse_known(own))
    for field in dataclasses.fields(cls):
        if field.name in given and given[field.name] is dataclasses.MISSING:
            raise UsageError(f"`python -m launch {target}` requires --{field.name} ({field.metadata['help']}). Add it.")
    workdir, arrays = None, ()
    if target in WITH_RUNNER:
        if not flags:
            raise UsageError(f"`python -m launch {target}` requires flags of the runner. Add them after `--`.")
        options, arrays = checked(flags, ["--host_devices"] if given.get("host_devices") else [])
        workdir = options.workdir
    elif flags:
        raise UsageError(f"`python -m launch {target}` does not start a run. Remove `--` and the flags after it.")
    if not given["name"]:
        if target.startswith("tpu"):
            raise UsageError(f"`python -m launch {target}` requires the name of the slice. Add --name=NAME.")
        given["name"] = re.sub(r"[^\w.-]", "-", Path(workdir or "").name)
    job = cls(flags=flags, workdir=workdir, arrays=arrays, **given)
    _require_workdir(job)
    return target, job


def _target(words: list[str]) -> tuple[str, list[str]]:
    """Returns the target's name (one to three words) and the remaining arguments."""
    leading = next((n for n, word in enumerate(words) if word.startswith("-")), len(words))
    for count in (3, 2, 1):
        if count <= leading and (name := " ".join(words[:count])) in TARGETS:
            return name, words[count:]
    if not words or words[0] in ("-h", "--help"):
        raise _Help
    name = " ".join(words[:leading]) or words[0]
    raise UsageError(f"Unknown target '{name}'. {did_you_mean(name, TARGETS)}")


class _Help(Exception):
    """Raised if the command line only requests help."""


def _require_workdir(job: jobs.Job) -> None:
    if isinstance(job, jobs.JobSet):
        require_shared(job.workdir, jobset.mounts(job), "a folder on a --volume=CLAIM:/path")
    elif isinstance(job, jobs.Tpu):
        require_shared(job.workdir, ["/"], "the absolute path of a mounted folder")


def run(arguments: Sequence[str]) -> int:
    """Writes the scripts and runs the first of them; returns its exit code."""
    try:
        target, job = parse(arguments)
    except _Help:
        print(USAGE)
        return 0
    folder = Path(job.folder or f"launches/{job.name}")
    try:
        if isinstance(job, jobs.Local):
            return local.start(job, folder)
        written = RENDER[target][1](job, folder)
    except OSError as error:
        raise UsageError(f"'{folder}' cannot be written: {error.strerror}. Choose another --folder.") from error
    sys.stdout.flush()
    # The script replaces this process, so that it receives signals and the terminal.
    os.execvp("bash", ["bash", str(written), *(["--dry_run"] if job.dry_run else [])])


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; prints a known error as one message and returns its exit code."""
    return exit_code(run, arguments)
