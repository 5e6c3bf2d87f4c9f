"""A Slurm and an Open MPI of this machine, and what runs under them. Commands and output are shown with pytest -s."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.slurm import environment, missing, slurm
from tests.conftest import QUICK_COMPILE, ROOT

EXPERIMENT = ("--exp=tiny.StdlibTiny", "--smoke", "--no-tensorboard")
STEPS = 40
KNOBS = {"NUM_STEPS": STEPS, "SAVE_EVERY": 20, "EVAL_EVERY": "none", "LOG_EVERY": 1}
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


class Lab:
    """A folder in which runs are launched."""

    def __init__(self, folder: Path):
        self.folder = folder
        (folder / ".venv").symlink_to(sys.prefix)
        self.environment = {
            **environment(folder / "slurm" / "slurm.conf"),
            "XLA_FLAGS": QUICK_COMPILE,
            "PYTHONPATH": str(ROOT),
            "PATH": f"{folder / '.venv' / 'bin'}:{os.environ['PATH']}",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "TTY_COMPATIBLE": "0",  # Open MPI gives its processes a terminal, whatever its own output is
            "OMPI_MCA_rmaps_base_oversubscribe": "1",  # more processes than cores
        }

    def shell(self, *command: str, show: bool = True) -> str:
        """Runs a command as a user would type it; returns what it printed."""
        if show:
            print(f"$ {shlex.join(command)}", flush=True)
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        if show:
            print(done.stdout, end="", flush=True)
        assert done.returncode == 0, f"{shlex.join(command)} ended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    def flags(self, name: str, devices: int, **knobs: object) -> list[str]:
        """The runner's flags."""
        knobs = {**KNOBS, **knobs}
        settings = [f"--set={knob}={value}" for knob, value in knobs.items()]
        return [*EXPERIMENT, f"--host_devices={devices}", f"--workdir=runs/{name}", *settings]

    def render(self, target: str, name: str, *options: str, devices: int = 2, **knobs: object) -> None:
        """Has `launch` write the scripts of a run."""
        options = (*options, "--activate=. .venv/bin/activate", "--dry_run")
        self.shell("python", "-m", "launch", target, *options, "--", *self.flags(name, devices, **knobs))

    def losses(self, name: str) -> list[float]:
        """The training losses of a run, each step's once and in order."""
        lines = [json.loads(line) for line in (self.folder / "runs" / name / "metrics.jsonl").read_text().splitlines()]
        lines = [line for line in lines if line["split"] == "train"]
        assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
        return [line["loss"] for line in lines]

    def steps(self, name: str) -> int:
        """How many steps a run has reported."""
        metrics = self.folder / "runs" / name / "metrics.jsonl"
        return metrics.read_text().count("\n") if metrics.exists() else 0

    def saved(self, name: str) -> list[int]:
        """The steps that a run has checkpoints of."""
        return sorted(int(path.name) for path in (self.folder / "runs" / name / "checkpoints").glob("[0-9]*"))

    def output(self, name: str) -> str:
        """What the jobs of a launch have written."""
        return "".join(path.read_text() for path in sorted((self.folder / "launches" / name).glob("*.out")))

    def submit(self, name: str) -> str:
        """Submits a rendered job; returns its number."""
        return self.shell("sbatch", f"launches/{name}/job.sbatch").split()[-1]

    def state(self, job: str) -> str:
        """The state of a job, and its exit code."""
        fields = dict(
            part.split("=", 1)
            for part in self.shell("scontrol", "--oneliner", "show", "job", job, show=False).split()
            if "=" in part
        )
        return f"{fields['JobState']} {fields['ExitCode']}"

    def show(self, job: str) -> None:
        """Prints the state of a job."""
        self.shell("squeue", "--states=all", f"--job={job}", "--Format=JobID:8,Name:13,State:12,NumTasks:7,NodeList:16")

    def finish(self, name: str, job: str, within: float = 240) -> str:
        """Waits until a job is over, and prints its output; returns its state and exit code."""
        wait(lambda: self.state(job).split()[0] in OVER, within, lambda: self.output(name))
        self.show(job)
        print(f"$ cat launches/{name}/{job}.out")
        print(shortened((self.folder / "launches" / name / f"{job}.out").read_text()), flush=True)
        return self.state(job)

    def reach(self, name: str, step: int, job: str | None = None, within: float = 180) -> None:
        """Waits until a run has reported a step, and prints the state of its job."""
        wait(lambda: self.steps(name) >= step, within, lambda: self.output(name))
        if job is not None:
            self.show(job)


def shortened(text: str) -> str:
    """A run's output without Gloo's lines, and with every tenth step."""
    lines = []
    for line in text.splitlines():
        words = line.split()
        step = words[1].split("/")[0] if words[:1] == ["step"] and "/" in words[1] else ""
        if "peer ranks" not in line and (not step or step == "1" or int(step) % 10 == 0):
            lines.append(line)
    return "\n".join(lines)


def wait(reached: Callable[[], bool], seconds: float, output: Callable[[], str]) -> None:
    """Waits until `reached()`; on a timeout fails with the output."""
    began = time.monotonic()
    while not reached():
        spent = time.monotonic() - began
        assert spent < seconds, f"not after {spent:.0f} s:\n{output()}"
        time.sleep(0.1)


def pid_of(job: str, task: int) -> int:
    """The training process that is a task of a Slurm job; not task 0, whose number srun has in its environment too."""
    wanted = {f"SLURM_JOB_ID={job}".encode(), f"SLURM_PROCID={task}".encode()}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if wanted <= set((entry / "environ").read_bytes().split(b"\0")):
                return int(entry.name)
        except OSError:
            continue  # it ended meanwhile
    raise AssertionError(f"no process is task {task} of job {job}")


@pytest.fixture(scope="session")
def lab(tmp_path_factory) -> Lab:
    """A folder for runs."""
    return Lab(tmp_path_factory.mktemp("lab"))


@pytest.fixture(scope="session")
def cluster(lab):
    """The folder for runs, with a Slurm that takes jobs."""
    if (why := missing()) is not None:
        pytest.skip(why)
    with slurm(lab.folder / "slurm"):
        print()
        lab.shell("scontrol", "--version")
        lab.shell("sinfo", "--Node", "--Format=NodeList:12,CPUs:6,StateLong:8")
        yield lab


@pytest.fixture(scope="session")
def open_mpi(lab) -> Lab:
    """The folder for runs, where mpirun is that of Open MPI."""
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed: on Debian, apt-get install openmpi-bin makes it so.")
    print()
    if "Open MPI" not in lab.shell("mpirun", "--version"):
        pytest.skip("mpirun is not that of Open MPI.")
    return lab


@pytest.fixture(scope="session")
def alone(lab) -> list[float]:
    """The losses of one process with four devices."""
    print()
    lab.shell("python", "-m", "runners.main", *lab.flags("alone", 4), show=False)
    return lab.losses("alone")
