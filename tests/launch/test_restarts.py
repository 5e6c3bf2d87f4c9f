"""A supervised run whose processes are killed again and again ends in the bits of an undisturbed one."""

import os
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from testing import launches
from testing.faults.supervised import errors_of, kill_often, supervised, trainers
from tests.conftest import ROOT, xla_flags

pytestmark = pytest.mark.slow


def start(
    workdir: Path, processes: int, restarts: int, launcher: Sequence[str] = (), runner: Sequence[str] = ()
) -> subprocess.Popen:
    """Starts a run of launches.command in the parent folder of `workdir`, with more flags of launcher and runner."""
    runner = [*launches.command(workdir)[3:], "--peer_timeout=20", *runner]
    environment = {**os.environ, "XLA_FLAGS": xla_flags(1), "PYTHONPATH": f"{ROOT}:{workdir.parent}"}
    return supervised(runner, workdir, processes, restarts, environment, ["--host_devices=2", *launcher])


@pytest.mark.parametrize(("processes", "kills"), [(2, 3)])
def test_killed_processes_are_started_again(tmp_path, processes, kills):
    calm, workdir = tmp_path / "calm", tmp_path / "killed"
    undisturbed = start(calm, processes, 0)
    assert undisturbed.wait(timeout=600) == 0, errors_of(calm).read_text()
    process = start(workdir, processes, 100)
    killed = len(kill_often(process, workdir, kills, launches.STEPS, random.Random(0)))
    code, errors = process.wait(timeout=900), errors_of(workdir).read_text()
    assert code == 0, errors
    assert killed >= 2
    assert errors.count("Restart ") == killed
    assert launches.differences(calm, workdir) == []
    assert trainers(workdir) == []
