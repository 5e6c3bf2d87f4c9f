"""The targets `tpu ...`: slices of Cloud TPUs, managed by gcloud."""

from collections.abc import Sequence
from pathlib import Path

from launch.jobs import Installation, NewTpu, QueuedTpu, Stop, Tpu, TpuRun, Watch
from launch.rendering import script, steps, write
from launch.supervisor import command_of
from layers.errors import UsageError

VM, QUEUE = "tpu-vm", "queued-resources"


def create(job: NewTpu, folder: Path) -> Path:
    """Writes the script that creates the slice; returns its path."""
    line = _gcloud(job, VM, "create", job.name, f"--version={job.runtime_version}", *_kind(job))
    return _script(folder, "tpu_create.sh", line)


def install(job: Installation, folder: Path) -> Path:
    """Writes the script that copies the last commit of a checkout to all hosts and installs it; returns its path."""
    source = Path(job.source)
    if not (source / "pyproject.toml").exists():
        raise UsageError(f"--source must be the folder of a checkout, with a pyproject.toml (got {job.source}).")
    packages = ["--editable", f".[{job.extras}]"]
    if (source / "constraints.txt").exists():
        packages = ["--constraint", "constraints.txt", *packages]
    host = write(folder, "launch_install.sh", script("tpu_install_host.sh", python=job.python, packages=packages))
    code = folder.absolute() / "launch_code.tar.gz"
    archive = ["git", "-C", str(source.absolute()), "archive", "--format=tar.gz", f"--output={code}", "HEAD"]
    return _script(folder, "tpu_install.sh", archive, _copy(job, code, host), _on_hosts(job, "bash launch_install.sh"))


def run(job: TpuRun, folder: Path) -> Path:
    """Writes the script that starts a run on all hosts, in tmux; returns its path."""
    python = "../venv/bin/python"
    command = [*command_of(job.restarts, job.workdir, python), python, "-m", "runners.main", *job.flags]
    session = write(folder, "launch_session.sh", script("tpu_session.sh", command=command))
    host = write(folder, "launch_run.sh", script("tpu_run_host.sh"))
    return _script(folder, "tpu_run.sh", _copy(job, session, host), _on_hosts(job, "bash launch_run.sh"))


def attach(job: Watch, folder: Path) -> Path:
    """Writes the script that attaches to the tmux session of a host; returns its path."""
    line = _gcloud(job, VM, "ssh", job.name, f"--worker={job.worker}", ending=["--", "-t", "tmux attach -t =vortaro"])
    return _script(folder, "tpu_attach.sh", line)


def logs(job: Watch, folder: Path) -> Path:
    """Writes the script that follows the log of a host; returns its path."""
    return _script(folder, "tpu_logs.sh", _on_hosts(job, "tail -n 100 -F vortaro/run.log", job.worker))


def kill(job: Stop, folder: Path) -> Path:
    """Writes the script that stops the run on all hosts after a save; returns its path."""
    host = write(folder, "launch_kill.sh", script("tpu_kill_host.sh", grace=job.grace))
    return _script(folder, "tpu_kill.sh", _copy(job, host), _on_hosts(job, "bash launch_kill.sh"))


def delete(job: Tpu, folder: Path) -> Path:
    """Writes the script that deletes the slice; returns its path."""
    return _script(folder, "tpu_delete.sh", _gcloud(job, VM, "delete", job.name, "--quiet"))


def queue_create(job: QueuedTpu, folder: Path) -> Path:
    """Writes the script that requests a slice through a queue; returns its path."""
    more = [f"--valid-until-duration={job.valid_until_duration}"] if job.valid_until_duration else []
    options = [f"--node-id={job.name}", f"--runtime-version={job.runtime_version}", *_kind(job), *more]
    return _script(folder, "tpu_queue_create.sh", _gcloud(job, QUEUE, "create", job.name, *options))


def queue_state(job: Tpu, folder: Path) -> Path:
    """Writes the script that prints the state of the request; returns its path."""
    line = _gcloud(job, QUEUE, "describe", job.name, "--format=value(state.state)")
    return _script(folder, "tpu_queue_state.sh", line)


def queue_delete(job: Tpu, folder: Path) -> Path:
    """Writes the script that deletes the request and its slice; returns its path."""
    return _script(folder, "tpu_queue_delete.sh", _gcloud(job, QUEUE, "delete", job.name, "--force", "--quiet"))


def _kind(job: NewTpu) -> list[str]:
    kind = [f"--accelerator-type={job.accelerator_type}"]
    return [*kind, *(["--spot"] if job.spot else []), *(["--reserved"] if job.reserved else [])]


def _gcloud(job: Tpu, *words: str, ending: Sequence[str] = ()) -> list[str]:
    project = [f"--project={job.project}"] if job.project else []
    return ["gcloud", "compute", "tpus", *words, f"--zone={job.zone}", *project, *ending]


def _copy(job: Tpu, *files: Path) -> list[str]:
    return _gcloud(job, VM, "scp", *(str(file) for file in files), f"{job.name}:", "--worker=all")


def _on_hosts(job: Tpu, command: str, worker: str = "all") -> list[str]:
    return _gcloud(job, VM, "ssh", job.name, f"--worker={worker}", f"--command={command}")


def _script(folder: Path, name: str, *lines: list[str]) -> Path:
    return write(folder, name, steps("gcloud", "Install the Google Cloud CLI", lines))
