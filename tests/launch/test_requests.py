"""Requests that are refused, each in one sentence, before anything is written or run."""

import os

import pytest

from launch.command_line import main
from launch.runner_flags import checked
from tests.support.processes.fake_launch_tools import executable

RUN = ["--", "--workdir=runs/x"]
CLOUD = ["--", "--workdir=gs://b/x"]
SLICE = ["--name=s", "--zone=z"]
PODS = ["jobset", "--image=i", "--num_hosts=4"]
REFUSED = {
    "Unknown target 'slum'. Did you mean 'slurm'?": ["slum"],
    "Unknown target 'tpu queue list'. Did you mean": ["tpu", "queue", "list"],
    "Unknown flag '--node=2'. Did you mean '--nodes'": ["slurm", "--node=2", *RUN],
    "`python -m launch slurm` requires --nodes (number of machines).": ["slurm", *RUN],
    "--nodes must be at least 1 (got 0).": ["slurm", "--nodes=0", *RUN],
    "must equal --gpus_per_node = 8": ["slurm", "--nodes=1", "--gpus_per_node=8", "--tasks_per_node=2", *RUN],
    "--sbatch must be an option of sbatch": ["slurm", "--nodes=1", "--sbatch=x", *RUN],
    "--partition must be one line of printable characters": ["slurm", "--nodes=1", "--partition=a\nb", *RUN],
    "requires flags of the runner. Add them after `--`": ["slurm", "--nodes=1"],
    "does not start a run. Remove `--`": ["tpu", "delete", *SLICE, *CLOUD],
    "(got '..')": ["slurm", "--nodes=1", "--name=..", *RUN],
    "Unknown flag '--workdirs=x'. Did you mean '--workdir'": ["local", "--num_processes=2", "--", "--workdirs=x"],
    "Unknown mode 'trian'. Did you mean 'train'": ["local", "--num_processes=2", *RUN, "--mode=trian"],
    "Did you mean 'tiny.StdlibTiny'": ["local", "--num_processes=2", *RUN, "--exp=tiny.StdlibTyni"],
    "are set by --set: --set=NUM_LAYERS=6.": ["local", "--num_processes=2", *RUN, "--NUM_LAYERS=6"],
    "'LEARNING_RATE'": ["slurm", "--nodes=2", *RUN, "--exp=tiny.StdlibTiny", "--set=LERNING_RATE=1"],
    "--coordinator is set by the launcher": ["slurm", "--nodes=2", *RUN, "--coordinator=a:1"],
    "--process_id is set by the launcher": [*PODS, *CLOUD, "--process_id", "0"],
    "--host_devices is set by the": ["local", "--num_processes=2", "--host_devices=2", *RUN, "--host_devices=4"],
    "--hosts and --hostfile exclude": ["mpirun", "--num_processes=2", "--hosts=a", "--hostfile=b", *RUN],
    "Give both, or remove both": [*PODS, "--tpu_type=tpu-v4-podslice", *CLOUD],
    "that --num_hosts = 4 divides (got 3x3)": [*PODS, "--tpu_type=t", "--topology=3x3", *CLOUD],
    "--volume must be CLAIM:/path (got data)": [*PODS, "--volume=data", *CLOUD],
    "part of host names (got X)": [*PODS, "--name=X", *CLOUD],
    "The workdir 'runs/x' would be a separate folder on each host": [*PODS, *RUN],
    "or a folder on a --volume": [*PODS, "--volume=data:/mnt", "--", "--workdir=/mnt2/x"],
    "the absolute path of a mounted folder": ["tpu", "run", *SLICE, *RUN],
    "requires the name of the slice. Add --name=NAME.": ["tpu", "run", "--zone=z", *CLOUD],
    "--spot and --reserved exclude": ["tpu", "create", *SLICE, "--accelerator_type=v4-8", "--spot", "--reserved"],
    "with a pyproject.toml (got": ["tpu", "install", *SLICE],
}


@pytest.mark.parametrize("message", REFUSED)
def test_it_is_refused_in_one_sentence(message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.execvp", lambda *_: pytest.fail("it was launched"))
    assert main(REFUSED[message]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("vortaro: ")
    assert len(err.splitlines()) == 1
    assert message in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", [["local", "--num_processes=2"], ["slurm", "--nodes=1"]])
def test_a_folder_that_cannot_be_written_is_named(target, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("launch.local.PATIENCE", 0)
    (tmp_path / "file").write_text("")
    assert main([*target, "--folder=file/x", *RUN]) == 2
    assert "'file/x' cannot be written: Not a directory. Choose another --folder." in capsys.readouterr().err


@pytest.mark.parametrize("workdir", ["/mnt/data", "/mnt/data/x", "s3://b/x"])
def test_a_workdir_that_all_pods_see_is_taken(workdir, tmp_path, command):
    words = [*PODS, "--name=x", "--volume=data:/mnt/data", "--dry_run", "--", f"--workdir={workdir}"]
    done = command("launch", *words)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "launches/x/jobset.yaml").exists()


TOOLS = {
    "sbatch": ["slurm", "--nodes=1", *RUN],
    "mpirun": ["mpirun", "--num_processes=1", *RUN],
    "kubectl": [*PODS, *CLOUD],
    "gcloud": ["tpu", "delete", *SLICE],
}


@pytest.mark.parametrize("tool", TOOLS)
def test_a_missing_tool_is_named(tool, tmp_path, command):
    (tmp_path / "bin").mkdir()
    for name in ("bash", "env"):
        executable(tmp_path / "bin" / name, f'#!/bin/sh\nexec /usr/bin/{name} "$@"\n')
    target, *rest = TOOLS[tool]
    words = ["tpu", "delete", *rest[1:]] if target == "tpu" else [target, *rest]
    done = command("launch", *words, PATH=str(tmp_path / "bin"))
    assert done.returncode == 2
    assert done.stderr.startswith(f"vortaro: '{tool}' is not installed on this machine. ")
    assert len(done.stderr.splitlines()) == 1


def test_the_experiment_is_looked_for_without_a_device(tmp_path, command):
    """The launcher's machine may lack the accelerator: the configured platform does not exist there."""
    words = ["slurm", "--nodes=1", "--dry_run", "--", "--exp=tiny.StdlibTiny", "--smoke", "--workdir=runs/x"]
    done = command("launch", *words, JAX_PLATFORMS="no_such_platform")
    assert done.returncode == 0, done.stderr
    assert os.access(tmp_path / "launches/x/submit.sh", os.R_OK)


def test_what_is_launched_may_use_accelerators(monkeypatch):
    """The launcher itself looks for no device, but its environment is that of what it starts."""
    monkeypatch.delenv("JAX_PLATFORMS")
    checked(["--exp=tiny.StdlibTiny", "--workdir=runs/x"])
    assert "JAX_PLATFORMS" not in os.environ
