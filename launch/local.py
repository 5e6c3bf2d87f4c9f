"""The target `local`: processes on this machine."""

import functools
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from launch.children import Signals, end_with_parent, print_message, shell_code
from launch.fewer_processes import FewerProcesses
from launch.jobs import Local
from launch.supervisor import is_complete, last_checkpoint, supervise

PATIENCE = 120  # seconds in which the other processes must exit after one has failed
PATIENCE_BEFORE_RESTART = 5  # the same if the run is started again: the others cannot save without that process


def start(job: Local, folder: Path) -> int:
    """Starts the processes of the runner and waits for them; returns the first exit code that is not zero."""
    more = [] if job.host_devices is None else [f"--host_devices={job.host_devices}"]
    command = [sys.executable, "-m", "runners.main", *job.flags, *more]
    logs, places = folder / "logs", range(job.num_processes)
    if job.dry_run:
        _lines(command, places, logs)
        return 0
    for file in logs.glob("process_*.log"):  # of an earlier launch; those of a restart are appended to
        file.unlink()
    patience = PATIENCE_BEFORE_RESTART if job.restarts else PATIENCE
    run = functools.partial(processes, command, logs, patience)
    if job.fewest is None:
        return supervise(lambda received: run(places, received)[0], job.workdir, job.restarts)
    facts = (functools.partial(last_checkpoint, job.workdir), functools.partial(is_complete, job.workdir))
    describe = lambda failed: f"Process {failed[0]} failed first"
    return supervise(FewerProcesses(run, job.num_processes, describe, job.fewest, *facts), job.workdir, job.restarts)


def processes(
    command: Sequence[str],
    logs: Path,
    patience: float,
    places: Sequence[int],
    received: Sequence[int],
    stop_now: Callable[[], bool] = lambda: False,
) -> tuple[int, list[int]]:
    """Runs a command in connected processes; returns the first exit code that is not 0, and its place.

    The first process writes to the terminal, the others to files in `logs`.

    Args:
      command: the command, without the flags by which processes find each other.
      logs: the folder of the output of all processes but the first.
      patience: seconds in which the other processes must exit after one has failed.
      places: numbers of the processes in the names of files, and of their GPUs.
      received: signals that this process has received; each is sent to all processes, once.
      stop_now: called every second; once it is True, all processes receive SIGTERM.
    """
    lines = _lines(command, places, logs)
    started: dict[int, subprocess.Popen] = {}
    try:
        for place, line in zip(places, lines, strict=True):
            started[place] = _started(line, place, logs, is_first=place == places[0])
        return _first_failure(started, received, logs, patience, stop_now)
    finally:
        for process in started.values():
            if process.poll() is None:
                process.kill()


def _lines(command: Sequence[str], places: Sequence[int], logs: Path) -> list[list[str]]:
    """Returns the command of each process, and prints it."""
    port, count = _free_port(), len(places)
    lines = [[*command, *_flags(port, count, index)] for index in range(count)]
    for line in lines:
        print("+", shlex.join(line))
    if count > 1:
        print(f"Output of process {places[0]} follows; the others write to {_log(logs, '*')}", flush=True)
    return lines


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def _flags(port: int, count: int, index: int) -> list[str]:
    return [f"--coordinator=localhost:{port}", f"--num_processes={count}", f"--process_id={index}"]


def _log(logs: Path, index: int | str) -> Path:
    return logs.absolute() / f"process_{index}.log"


def _started(line: Sequence[str], place: int, logs: Path, *, is_first: bool) -> subprocess.Popen:
    environment = os.environ | {"JAX_LOCAL_DEVICE_IDS": str(place)}  # one GPU each, if the machine has any
    # Each in a new session, so that it receives Ctrl-C only once, from this process.
    more: Any = {"start_new_session": True, "preexec_fn": end_with_parent}
    start = functools.partial(subprocess.Popen, line, env=environment, stdin=subprocess.DEVNULL, **more)
    if is_first:
        return start()
    logs.mkdir(parents=True, exist_ok=True)
    with _log(logs, place).open("a") as file:
        return start(stdout=file, stderr=subprocess.STDOUT)


def _first_failure(
    started: Mapping[int, subprocess.Popen],
    received: Sequence[int],
    logs: Path,
    patience: float,
    stop_now: Callable[[], bool],
) -> tuple[int, list[int]]:
    """Waits for all processes; returns code and place of the first that failed, no place if several did at once."""
    running, code, failed, deadline = dict(started), 0, list[int](), float("inf")
    signals = Signals(received, stop_now)
    while running:
        signals.send(running.values())
        ends = {place: ended for place, process in running.items() if (ended := process.poll()) is not None}
        failures = [place for place, ended in ends.items() if ended != 0]
        for place in failures:
            _print_end(place, ends[place], None if place == min(started) else logs)
        if failures and not code:  # several at once have a common cause
            code, failed = shell_code(ends[failures[0]]), failures if len(failures) == 1 else []
            deadline = time.monotonic() + patience
        running = {place: process for place, process in running.items() if place not in ends}
        if time.monotonic() > deadline:
            for place, process in running.items():
                print_message(f"Process {place} did not exit in time and is killed.")
                process.kill()
            deadline = float("inf")
        time.sleep(0.05)
    return code, failed


def _print_end(place: int, code: int, logs: Path | None) -> None:
    where = "" if logs is None else f" (its output: {_log(logs, place)})"
    what = f"ended with exit code {code}" if code > 0 else f"was killed by {signal.Signals(-code).name}"
    print_message(f"Process {place} {what}{where}.")
