"""Launches of every target, a folder to launch from, and what is written there."""

import subprocess

import pytest

from launch.command_line import RENDER, parse

HARD = """--set=DATA_PATH=it's a "file" of $HOME, $(HOME) & `date` * \\ %j #x"""
FLAGS = ["--", "--workdir=gs://bucket/runs/one", HARD, "--mode=sample", "--prompt=def f():\n\treturn ''", "--stop"]
RUNNER = ["-m", "runners.main", *FLAGS[1:]]
SLICE = ["--name=slice", "--zone=us-central2-b"]
STUDY = [
    *("--", "--exp=mu.MuTiny", "--smoke", "--mode=study", "--workdir=gs://bucket/runs/one"),
    """--set=STUDY=Study(how="halving", values={"LEARNING_RATE": (0.001, 0.01, 0.1, 1.0)}, seeds=2, rungs=2)""",
]
LAUNCHES = {
    "slurm": ["slurm", "--nodes=2", "--gpus_per_node=8", "--cpus_per_task=4", "--time=1:00:00", "--account=a", *FLAGS],
    "slurm, activated": ["slurm", "--nodes=2", "--activate=. ./activate", "--sbatch=--comment=so so", *FLAGS],
    "slurm, study": ["slurm", "--nodes=2", "--gpus_per_node=8", "--time=1:00:00", *STUDY],
    "mpirun": ["mpirun", "--num_processes=4", "--hosts=a:2,b:2", "--export=XLA_FLAGS", *FLAGS],
    "mpirun, activated": ["mpirun", "--num_processes=4", "--hostfile=my hosts", "--activate=export X=1", *FLAGS],
    "jobset, tpu": [
        *("jobset", "--image=images/vortaro:1", "--num_hosts=4", "--tpu_type=tpu-v5-lite-podslice", "--topology=4x4"),
        *FLAGS,
    ],
    "jobset, gpu": [
        "jobset",
        "--image=i",
        "--num_hosts=2",
        "--gpus=8",
        "--volume=data:/mnt/data",
        "--grace=60",
        *FLAGS,
    ],
    "tpu create": ["tpu", "create", *SLICE, "--accelerator_type=v4-32", "--spot", "--project=p"],
    "tpu install": ["tpu", "install", *SLICE, "--source=checkout"],
    "tpu run": ["tpu", "run", *SLICE, *FLAGS],
    "tpu attach": ["tpu", "attach", *SLICE],
    "tpu logs": ["tpu", "logs", *SLICE, "--worker=all"],
    "tpu kill": ["tpu", "kill", *SLICE, "--grace=60"],
    "tpu delete": ["tpu", "delete", *SLICE],
    "tpu queue create": ["tpu", "queue", "create", *SLICE, "--accelerator_type=v4-32", "--reserved"],
    "tpu queue state": ["tpu", "queue", "state", *SLICE],
    "tpu queue delete": ["tpu", "queue", "delete", *SLICE],
}


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder to launch from, with a commit to install."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "activate").write_text('export X="1$NOT_SET"\n')
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout" / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    (tmp_path / "checkout" / "constraints.txt").write_text("")
    git = ["git", "-C", "checkout", "-c", "user.name=n", "-c", "user.email=e"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "m"]):
        subprocess.run([*git, *words], check=True)
    return tmp_path


def rendered(arguments, folder):
    """Writes what a launch writes; returns the files."""
    target, job = parse(arguments)
    RENDER[target][1](job, folder)
    return sorted(path for path in folder.iterdir() if path.suffix != ".gz")
