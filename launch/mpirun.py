"""The target `mpirun`: Open MPI's mpirun."""

import sys
from pathlib import Path

from launch.fewer_machines import HOSTS, PROCESSES, hosts_of, slots_of
from launch.jobs import Mpirun
from launch.rendering import script, write
from launch.supervisor import command_of


def render(job: Mpirun, folder: Path) -> Path:
    """Writes the script that runs mpirun; returns its path."""
    # By default, two processes would get one core each.
    line = ["mpirun", "-n", str(job.num_processes) if job.fewest is None else PROCESSES, "--bind-to", "none"]
    if job.hosts:
        line += ["--host", job.hosts if job.fewest is None else HOSTS]
    if job.hostfile:
        line += ["--hostfile", str(Path(job.hostfile).absolute())]
    if job.processes_per_host:
        line += ["--map-by", f"ppr:{job.processes_per_host}:node"]
    for name in job.export:
        line += ["-x", name]
    line += ["--wdir", str(Path.cwd())]
    runner = ["-m", "runners.main", *job.flags]
    if job.activate:
        line += ["bash", "-c", f'{job.activate}\nexec "$@"', "bash", "python", *runner]
    else:
        line += [sys.executable, *runner]
    hosts = None if job.fewest is None else hosts_of(slots_of(job.hosts, job.processes_per_host))
    line = [*command_of(job.restarts, job.workdir, sys.executable, job.fewest, hosts), *line]
    return write(folder, "mpirun.sh", script("mpirun.sh", grace=job.grace, mpirun=line))
