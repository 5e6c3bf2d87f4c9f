"""The target `local`: processes on this machine."""

import functools
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launch.jobs import Local
from launch.supervisor import end_with_parent, pass_on, shell_code, supervise

PATIENCE = 120  # seconds in which the other processes must exit after one has failed
PATIENCE_BEFORE_RESTART = 5  # the same if the run is started again: the others cannot save without that process


def start(job: Local, folder: Path) -> int:
    """Starts the processes of the runner and waits for them; returns the first exit code that is not zero."""
    more = [] if job.host_devices is None else [f"--host_devices={job.host_devices}"]
    command = [sys.executable, "-m", "runners.main", *job.flags, *more]
    logs = folder / "logs"
    if job.dry_run:
        return processes(command, job.num_processes, logs, (), dry_run=True)
    for file in logs.glob("process_*.log"):  # of an earlier launch; those of a restart are appended to
        file.unlink()
    patience = PATIENCE_BEFORE_RESTART if job.restarts else PATIENCE
    run = functools.partial(processes, command, job.num_processes, logs, patience=patience)
    return supervise(run, job.workdir, job.restarts)


def processes(
    command: Sequence[str],
    count: int,
    logs: Path,
    received: Sequence[int],
    *,
    patience: float | None = None,
    dry_run: bool = False,
) -> int:
    """Runs a command in `count` connected processes; returns the first exit code that is not zero.

    The first process writes to the terminal, the others to files in `logs`.

    Args:
      command: the command, without the flags by which processes find each other.
      count: number of processes.
      logs: the folder of the output of all processes but the first.
      received: signals that this process has received; each is sent to all processes, once.
      patience: seconds in which the other processes must exit after one has failed; PATIENCE by default.
      dry_run: prints the commands and runs none.
    """
    port = _free_port()
    lines = [[*command, *_place(port, count, index)] for index in range(count)]
    for line in lines:
        print("+", shlex.join(line))
    if count > 1:
        print(f"Output of process 0 follows; the others write to {_log(logs, '*')}", flush=True)
    if dry_run:
        return 0
    started: list[subprocess.Popen] = []
    try:
        started += [_started(line, index, logs) for index, line in enumerate(lines)]
        return _first_failure(started, received, logs, PATIENCE if patience is None else patience)
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def _place(port: int, count: int, index: int) -> list[str]:
    return [f"--coordinator=localhost:{port}", f"--num_processes={count}", f"--process_id={index}"]


def _log(logs: Path, index: int | str) -> Path:
    return logs.absolute() / f"process_{index}.log"


def _started(line: Sequence[str], index: int, logs: Path) -> subprocess.Popen:
    environment = os.environ | {"JAX_LOCAL_DEVICE_IDS": str(index)}  # one GPU each, if the machine has any
    # Each in a new session, so that it receives Ctrl-C only once, from this process.
    more: Any = {"start_new_session": True, "preexec_fn": end_with_parent}
    start = functools.partial(subprocess.Popen, line, env=environment, stdin=subprocess.DEVNULL, **more)
    if index == 0:
        return start()
    logs.mkdir(parents=True, exist_ok=True)
    with _log(logs, index).open("a") as file:
        return start(stdout=file, stderr=subprocess.STDOUT)


def _first_failure(started: Sequence[subprocess.Popen], received: Sequence[int], logs: Path, patience: float) -> int:
    """Waits for all processes; prints how failed ones ended, and returns the exit code of the first of them."""
    running, passed, code, deadline = dict(enumerate(started)), 0, 0, float("inf")
    while running:
        passed = pass_on(received, passed, running.values())
        for index, process in list(running.items()):
            if (ended := process.poll()) is None:
                continue
            del running[index]
            if ended != 0:
                _say(index, ended, logs)
                code = code or shell_code(ended)
                deadline = min(deadline, time.monotonic() + patience)
        if time.monotonic() > deadline:
            for index, process in running.items():
                print(f"vortaro: Process {index} did not exit in time and is killed.", file=sys.stderr)
                process.kill()
            deadline = float("inf")
        time.sleep(0.05)
    return code


def _say(index: int, code: int, logs: Path) -> None:
    where = "" if index == 0 else f" (its output: {_log(logs, index)})"
    what = f"ended with exit code {code}" if code > 0 else f"was killed by {signal.Signals(-code).name}"
    print(f"vortaro: Process {index} {what}{where}.", file=sys.stderr, flush=True)
