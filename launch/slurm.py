"""The target `slurm`: a batch job of Slurm."""

import shlex
import sys
from pathlib import Path

from launch.jobs import Slurm
from launch.rendering import Verbatim, script, steps, write


def render(job: Slurm, folder: Path) -> Path:
    """Writes the batch script and the script that submits it; returns the path of the second."""
    directives = [f"#SBATCH {shlex.quote(option)}" for option in _options(job, folder.absolute())]
    srun = ["srun", "--kill-on-bad-exit=1"]
    if job.cpus_per_task:
        srun.append(f"--cpus-per-task={job.cpus_per_task}")  # since Slurm 22.05 srun does not take it from sbatch
    python = "python" if job.activate else sys.executable
    batch = script(
        "job.sbatch",
        directives=Verbatim("\n".join(directives)),
        activate=Verbatim(_activation(job.activate)),
        srun=[*srun, python, "-m", "runners.main", *job.flags],
    )
    path = write(folder, "job.sbatch", batch)
    submit = steps("sbatch", "Run this on a login node of a Slurm cluster", [["sbatch", str(path)]])
    return write(folder, "submit.sh", submit)


def _options(job: Slurm, folder: Path) -> list[str]:
    options = [
        f"--job-name={job.name}",
        f"--nodes={job.nodes}",
        f"--ntasks-per-node={job.tasks}",
        f"--chdir={Path.cwd()}",
        f"--output={str(folder).replace('%', '%%')}/%j.out",
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
