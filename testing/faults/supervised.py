"""Runs of `launch local --restarts`, whose processes are killed again and again and not restarted by hand."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from testing.faults.bench import OTHER, SAME, Bench, Outcome, Shape
from testing.faults.runs import RUNS
from testing.launches import PEER_TIMEOUT, STEPS, differences, saved_steps

RESTARTS = 1000
SECONDS_OF_A_KILL = 120  # from one kill to the next, and for the rest of the run


def supervised(
    runner: Sequence[str],
    workdir: Path,
    processes: int,
    restarts: int,
    environment: Mapping[str, str],
    launcher: Sequence[str] = (),
) -> subprocess.Popen:
    """Starts a supervised run in the parent folder of its run folder; its errors are written to RUN.err there.

    Args:
      runner: the flags of the runner.
      workdir: the run folder.
      processes: number of processes.
      restarts: the value of --restarts.
      environment: all environment variables.
      launcher: further flags of the launcher.
    """
    line = ["-m", "launch", "local", f"--num_processes={processes}", f"--restarts={restarts}", *launcher]
    with errors_of(workdir).open("w") as errors:
        files = {"stdout": subprocess.DEVNULL, "stderr": errors}
        return subprocess.Popen([sys.executable, *line, "--", *runner], cwd=workdir.parent, env=environment, **files)


def errors_of(workdir: Path) -> Path:
    """Returns the file with the errors of a supervised run."""
    return workdir.with_name(f"{workdir.name}.err")


def trainers(workdir: Path) -> list[int]:
    """Returns the process ids of the runner in a run folder, on Linux."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if b"runners.main" in words and f"--workdir={workdir}".encode() in words and b"launch" not in words:
            found.append(int(entry.name))
    return found


def kill_often(process: subprocess.Popen, workdir: Path, kills: int, last: int, rng: random.Random) -> list[int]:
    """Kills one process of a run at a random moment after each new checkpoint.

    Args:
      process: the launcher.
      workdir: the run folder.
      kills: the largest number of kills.
      last: the step of the last checkpoint, after which no process is killed.
      rng: chooses moments and processes.

    Returns:
      the step of the last checkpoint at each kill. There are fewer than `kills` if the run ended before, or if it
      did not save within the time limit.
    """
    killed: list[int] = []
    deadline = time.monotonic() + SECONDS_OF_A_KILL
    while process.poll() is None and len(killed) < kills and time.monotonic() < deadline:
        time.sleep(0.02)
        saved = saved_steps(workdir)
        if not saved or saved[-1] <= max(killed, default=-1) or not (running := trainers(workdir)):
            continue
        time.sleep(rng.uniform(0, 0.5))
        if (newest := saved_steps(workdir)[-1]) >= last:
            break
        try:
            os.kill(rng.choice(running), signal.SIGKILL)
        except ProcessLookupError:
            continue
        killed.append(newest)
        deadline = time.monotonic() + SECONDS_OF_A_KILL
    return killed


def _killed_run(bench: Bench, shape: Shape, kills: int) -> Iterator[Outcome]:
    """Kills processes of one run; if it does not end in the right bits, every kill counts as a failure."""
    reference, workdir = bench.reference(shape), bench.folder()
    runner = [*bench.flags(workdir), f"--peer_timeout={PEER_TIMEOUT}"]
    process = supervised(runner, workdir, shape[0], RESTARTS, bench.environment())
    killed = kill_often(process, workdir, kills, STEPS, bench.rng)
    try:
        code = process.wait(timeout=SECONDS_OF_A_KILL)
        problem = "" if code == 0 else f"exit code {code}: {errors_of(workdir).read_text()[-1500:]}"
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        problem = f"no end within {SECONDS_OF_A_KILL} s"
    if left := trainers(workdir):
        problem = f"{problem or 'it has ended'}, and {len(left)} processes still run"
        for number in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
    problem = problem or ", ".join(f"{item} differs" for item in differences(reference, workdir))
    row = f"SIGKILL: one of {shape[0]} processes of `launch local --restarts`"
    for step in killed or [0]:
        detail = f"after the checkpoint of step {step}{f': {problem}' if problem else ''}"
        yield bench.outcome(row, OTHER if problem or not killed else SAME, detail)


def supervised_kills(bench: Bench) -> Iterator[Outcome]:
    """SIGKILL of one process of a run after another, which the launcher starts again."""
    yield from _killed_run(bench, bench.pair, 2 if bench.small else 5)
    if not bench.small and bench.run is RUNS["dense"]:
        for processes, kills in ((2, 10), (4, 10)):
            yield from _killed_run(bench, (processes, bench.run.devices), kills)
