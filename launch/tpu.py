"""Slices of Cloud TPUs, by gcloud."""

from collections.abc import Sequence
from pathlib import Path

from launch.jobs import Installation, NewTpu, QueuedTpu, Stop, Tpu, Watch
from launch.rendering import script, steps, write
from layers.errors import UsageError

VM, QUEUE = "tpu-vm", "queued-resources"


def create(job: NewTpu, folder: Path) -> Path:
    """Makes the slice."""
    line = _gcloud(job, VM, "create", job.name, f"--version={job.runtime_version}", *_kind(job))
    return _script(folder, "tpu_create.sh", line)


def install(job: Installation, folder: Path) -> Path:
    """Copies the last commit of a checkout to all hosts and installs it there."""
    source = Path(job.source)
    if not (source / "pyproject.toml").exists():
        raise UsageError(f"--source={job.source} has no pyproject.toml: give the folder of a checkout.")
    packages = ["--editable", f".[{job.extras}]"]
    if (source / "constraints.txt").exists():
        packages = ["--constraint", "constraints.txt", *packages]
    host = write(folder, "launch_install.sh", script("tpu_install_host.sh", python=job.python, packages=packages))
    code = folder.absolute() / "launch_code.tar.gz"
    archive = ["git", "-C", str(source.absolute()), "archive", "--format=tar.gz", f"--output={code}", "HEAD"]
    return _script(folder, "tpu_install.sh", archive, _copy(job, code, host), _on_hosts(job, "bash launch_install.sh"))


def run(job: Tpu, folder: Path) -> Path:
    """Starts a run on all hosts, in tmux."""
    command = ["../venv/bin/python", "-m", "runners.main", *job.flags]
    session = write(folder, "launch_session.sh", script("tpu_session.sh", command=command))
    host = write(folder, "launch_run.sh", script("tpu_run_host.sh"))
    return _script(folder, "tpu_run.sh", _copy(job, session, host), _on_hosts(job, "bash launch_run.sh"))


def attach(job: Watch, folder: Path) -> Path:
    """Shows a host's session."""
    line = _gcloud(job, VM, "ssh", job.name, f"--worker={job.worker}", ending=["--", "-t", "tmux attach -t =vortaro"])
    return _script(folder, "tpu_attach.sh", line)


def logs(job: Watch, folder: Path) -> Path:
    """Follows a host's log."""
    return _script(folder, "tpu_logs.sh", _on_hosts(job, "tail -n 100 -F vortaro/run.log", job.worker))


def kill(job: Stop, folder: Path) -> Path:
    """Ends the run on all hosts, which save first."""
    host = write(folder, "launch_kill.sh", script("tpu_kill_host.sh", grace=job.grace))
    return _script(folder, "tpu_kill.sh", _copy(job, host), _on_hosts(job, "bash launch_kill.sh"))


def delete(job: Tpu, folder: Path) -> Path:
    """Gives the slice back."""
    return _script(folder, "tpu_delete.sh", _gcloud(job, VM, "delete", job.name, "--quiet"))


def queue_create(job: QueuedTpu, folder: Path) -> Path:
    """Asks for a slice and waits in line for it."""
    more = [f"--valid-until-duration={job.valid_until_duration}"] if job.valid_until_duration else []
    options = [f"--node-id={job.name}", f"--runtime-version={job.runtime_version}", *_kind(job), *more]
    return _script(folder, "tpu_queue_create.sh", _gcloud(job, QUEUE, "create", job.name, *options))


def queue_state(job: Tpu, folder: Path) -> Path:
    """Says where the request stands."""
    line = _gcloud(job, QUEUE, "describe", job.name, "--format=value(state.state)")
    return _script(folder, "tpu_queue_state.sh", line)


def queue_delete(job: Tpu, folder: Path) -> Path:
    """Takes the request back, and the slice with it."""
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
    return write(folder, name, steps("gcloud", "install the Google Cloud CLI", lines))
