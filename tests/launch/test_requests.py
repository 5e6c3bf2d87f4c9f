"""Requests that are refused, each in one sentence, before anything is written or run."""

import os

import pytest

from launch.command_line import main
from launch.runner_flags import checked
from tests.support.stand_ins import executable

RUN = ["--", "--workdir=runs/x"]
CLOUD = ["--", "--workdir=gs://b/x"]
SLICE = ["--name=s", "--zone=z"]
PODS = ["jobset", "--image=i", "--num_hosts=4"]
REFUSED = {
    "There is no target 'slum'. Did you mean 'slurm'?": ["slum"],
    "There is no target 'tpu queue list'. Did you mean": ["tpu", "queue", "list"],
    "There is no flag '--node=2'. Did you mean '--nodes'": ["slurm", "--node=2", *RUN],
    "`python -m launch slurm` must be told --nodes: how many machines.": ["slurm", *RUN],
    "--nodes=0 must be at least 1.": ["slurm", "--nodes=0", *RUN],
    "does not fit --gpus_per_node=8": ["slurm", "--nodes=1", "--gpus_per_node=8", "--tasks_per_node=2", *RUN],
    "--sbatch=x is no option of sbatch": ["slurm", "--nodes=1", "--sbatch=x", *RUN],
    "--partition holds a character that cannot be printed": ["slurm", "--nodes=1", "--partition=a\nb", *RUN],
    "give its flags behind `--`": ["slurm", "--nodes=1"],
    "starts no run: leave out `--`": ["tpu", "delete", *SLICE, *CLOUD],
    "'..' is no name": ["slurm", "--nodes=1", "--name=..", *RUN],
    "There is no flag '--workdirs=x'. Did you mean '--workdir'": ["local", "--num_processes=2", "--", "--workdirs=x"],
    "There is no mode 'trian'. Did you mean 'train'": ["local", "--num_processes=2", *RUN, "--mode=trian"],
    "Did you mean 'tiny.StdlibTiny'": ["local", "--num_processes=2", *RUN, "--exp=tiny.StdlibTyni"],
    "are set by --set: --set=NUM_LAYERS=6.": ["local", "--num_processes=2", *RUN, "--NUM_LAYERS=6"],
    "'LEARNING_RATE'": ["slurm", "--nodes=2", *RUN, "--exp=tiny.StdlibTiny", "--set=LERNING_RATE=1"],
    "--coordinator is the launcher's to say": ["slurm", "--nodes=2", *RUN, "--coordinator=a:1"],
    "--process_id is the launcher's to say": [*PODS, *CLOUD, "--process_id", "0"],
    "--host_devices is the launcher's": ["local", "--num_processes=2", "--host_devices=2", *RUN, "--host_devices=4"],
    "--hosts and --hostfile both": ["mpirun", "--num_processes=2", "--hosts=a", "--hostfile=b", *RUN],
    "give both, or none": [*PODS, "--tpu_type=tpu-v4-podslice", *CLOUD],
    "--topology=3x3 does not give 4 hosts": [*PODS, "--tpu_type=t", "--topology=3x3", *CLOUD],
    "--volume=data must be CLAIM:/path": [*PODS, "--volume=data", *CLOUD],
    "--name=X becomes part of host names": [*PODS, "--name=X", *CLOUD],
    "The workdir 'runs/x' would be another on each host": [*PODS, *RUN],
    "or a folder on a --volume": [*PODS, "--volume=data:/mnt", "--", "--workdir=/mnt2/x"],
    "the absolute path of a mounted folder": ["tpu", "run", *SLICE, *RUN],
    "Say which slice: --name=NAME.": ["tpu", "run", "--zone=z", *CLOUD],
    "--spot and --reserved exclude": ["tpu", "create", *SLICE, "--accelerator_type=v4-8", "--spot", "--reserved"],
    "has no pyproject.toml": ["tpu", "install", *SLICE],
}


@pytest.mark.parametrize("said", REFUSED)
def test_it_is_refused_in_one_sentence(said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.execvp", lambda *_: pytest.fail("it was launched"))
    assert main(REFUSED[said]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("vortaro: ")
    assert len(err.splitlines()) == 1
    assert said in err
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
    assert done.stderr.startswith(f"vortaro: There is no '{tool}' on this machine: ")
    assert len(done.stderr.splitlines()) == 1


def test_the_experiment_is_looked_for_without_a_device(tmp_path, command):
    """Where the launcher stands there may be none: the named platform does not exist."""
    words = ["slurm", "--nodes=1", "--dry_run", "--", "--exp=tiny.StdlibTiny", "--smoke", "--workdir=runs/x"]
    done = command("launch", *words, JAX_PLATFORMS="no_such_platform")
    assert done.returncode == 0, done.stderr
    assert os.access(tmp_path / "launches/x/submit.sh", os.R_OK)


def test_what_is_launched_may_use_accelerators(monkeypatch):
    """The launcher itself looks for no device, but its environment is that of what it starts."""
    monkeypatch.delenv("JAX_PLATFORMS")
    checked(["--exp=tiny.StdlibTiny", "--workdir=runs/x"])
    assert "JAX_PLATFORMS" not in os.environ
