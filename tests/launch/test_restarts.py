"""A supervised run whose processes are killed again and again ends in the bits of an undisturbed one."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from testing import launches
from tests.conftest import ROOT, xla_flags

pytestmark = pytest.mark.slow
LAST = 120  # NUM_STEPS of launches.SETTINGS


def supervised(
    workdir: Path, processes: int, restarts: int, launcher: Sequence[str] = (), runner: Sequence[str] = ()
) -> subprocess.Popen:
    """Starts a run of launches.command in the parent folder of `workdir`, with more flags of launcher and runner."""
    runner = [*launches.command(workdir)[3:], "--peer_timeout=20", *runner]
    start = [f"--num_processes={processes}", f"--restarts={restarts}", "--host_devices=2", *launcher]
    line = ["-m", "launch", "local", *start]
    environment = {**os.environ, "XLA_FLAGS": xla_flags(1), "PYTHONPATH": f"{ROOT}:{workdir.parent}"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *line, "--", *runner], cwd=workdir.parent, env=environment, **pipes)


def trainers(workdir: Path) -> list[int]:
    """The process ids of the runner in this folder, on Linux."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if b"runners.main" in words and f"--workdir={workdir}".encode() in words and b"launch" not in words:
            found.append(int(entry.name))
    return found


def kill_often(process: subprocess.Popen, workdir: Path, kills: int, rng: random.Random) -> int:
    """Kills one process of the run at a random time after each new checkpoint; returns how many it has killed."""
    killed, seen, deadline = 0, -1, time.monotonic() + 60 * (kills + 5)
    while process.poll() is None and killed < kills:
        assert time.monotonic() < deadline
        saved = launches.saved_steps(workdir)
        if saved and saved[-1] > seen and (running := trainers(workdir)):
            time.sleep(rng.uniform(0, 0.5))
            if (newest := launches.saved_steps(workdir)[-1]) >= LAST:
                break
            try:
                os.kill(rng.choice(running), signal.SIGKILL)
            except ProcessLookupError:
                continue
            seen, killed = newest, killed + 1
        time.sleep(0.02)
    return killed


@pytest.mark.parametrize(("processes", "kills"), [(2, 3)])
def test_killed_processes_are_started_again(tmp_path, processes, kills):
    calm, workdir = tmp_path / "calm", tmp_path / "killed"
    undisturbed = supervised(calm, processes, 0)
    _, errors = undisturbed.communicate(timeout=600)
    assert undisturbed.returncode == 0, errors
    process = supervised(workdir, processes, 100)
    killed = kill_often(process, workdir, kills, random.Random(0))
    _, errors = process.communicate(timeout=900)
    assert process.returncode == 0, errors
    assert killed >= 2
    assert errors.count("Restart ") == killed
    assert launches.differences(calm, workdir) == []
    assert trainers(workdir) == []
