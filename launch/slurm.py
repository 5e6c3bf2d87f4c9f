"""The target `slurm`: a batch job of Slurm, or arrays of jobs for a mode that trains many runs."""

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from launch.jobs import Slurm
from launch.rendering import Verbatim, script, steps, write
from layers.errors import UsageError

WHERE = "Run this on a login node of a Slurm cluster"
TASK = "${SLURM_ARRAY_TASK_ID:-0}"


def render(job: Slurm, folder: Path) -> Path:
    """Writes the batch scripts and the script that submits them; returns the path of that one."""
    if not job.arrays:
        path = write(folder, "job.sbatch", _batch(job, f"{_out(folder)}/%j.out"))
        return write(folder, "submit.sh", steps("sbatch", WHERE, [["sbatch", str(path)]]))
    for option in job.sbatch:
        if option.partition("=")[0] in ("--array", "-a"):
            raise UsageError(f"The arrays of this mode have tasks 0 to N (got --sbatch={option}). Give --at_once=4.")
    at_once = f"%{job.at_once}" if job.at_once else ""
    paths = []
    for rung, size in enumerate(job.arrays):
        number = [f"--rung={rung}"] if len(job.arrays) > 1 else []
        text = _batch(job, f"{_out(folder)}/%A_%a.out", [f"--array=0-{size - 1}{at_once}"], number, run=True)
        paths.append(write(folder, f"rung_{rung}.sbatch", text))
    # What the last job compares has been trained: it needs neither several processes nor a GPU.
    last = dataclasses.replace(job, nodes=1, tasks_per_node=1, gpus_per_node=None)
    paths.append(write(folder, "compare.sbatch", _batch(last, f"{_out(folder)}/%j.out", flags=["--workers=0"])))
    lines = Verbatim("\n".join(f"submit {shlex.quote(str(path))}" for path in paths))
    return write(folder, "submit.sh", script("submit_in_order.sh", where=WHERE, submissions=lines))


def _out(folder: Path) -> str:
    return str(folder.absolute()).replace("%", "%%")


def _batch(job: Slurm, out: str, options: Sequence[str] = (), flags: Sequence[str] = (), *, run: bool = False) -> str:
    """Returns a batch script.

    Args:
      job: the job.
      out: the file of its output, with Slurm's placeholders.
      options: further options of sbatch.
      flags: further flags of the runner.
      run: whether the script is a task of an array, which trains the run of its number.
    """
    directives = [f"#SBATCH {shlex.quote(option)}" for option in [*_options(job, out), *options]]
    srun = ["srun", "--kill-on-bad-exit=1"]
    if job.cpus_per_task:
        srun.append(f"--cpus-per-task={job.cpus_per_task}")  # since Slurm 22.05 srun does not take it from sbatch
    python = "python" if job.activate else sys.executable
    command = shlex.join([*srun, python, "-m", "runners.main", *job.flags, *flags])
    return script(
        "job.sbatch",
        directives=Verbatim("\n".join(directives)),
        activate=Verbatim(_activation(job.activate)),
        srun=Verbatim(f'{command} --run="{TASK}"' if run else command),
    )


def _options(job: Slurm, out: str) -> list[str]:
    options = [
        f"--job-name={job.name}",
        f"--nodes={job.nodes}",
        f"--ntasks-per-node={job.tasks}",
        f"--chdir={Path.cwd()}",
        f"--output={out}",
        "--open-mode=append",  # a requeued job keeps its number, hence its output file
        "--requeue",
        f"--signal=TERM@{job.notice}",  # to the processes of srun, not to the script
    ]
    given = {
        "gpus-per-node": job.gpus_per_node,
        "cpus-per-task": job.cpus_per_task,
        "time": job.time,
        "partition": job.partition,
        "account": job.account,
    }
    return [*options, *(f"--{name}={value}" for name, value in given.items() if value), *job.sbatch]


def _activation(line: str) -> str:
    """Returns shell code that runs a line without `set -u`, because activation scripts read unset variables."""
    return f'if [ -z "$dry_run" ]; then\n  set +u\n  {line}\n  set -u\nfi' if line else ""
