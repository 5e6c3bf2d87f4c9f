"""ZeRO over several processes: real ones, each with a part of the devices."""

import json
import os
import socket
import subprocess
import sys

import pytest

from tests.conftest import ROOT, xla_flags


def losses(count, stage):
    """What each of so many processes says, eight devices in all."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "XLA_FLAGS": xla_flags(8 // count), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.runners.two_processes", str(port), str(count)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [
        subprocess.Popen([*command, str(index), str(stage)], env=environment, cwd=ROOT, **pipes)
        for index in range(count)
    ]
    said = [process.communicate(timeout=300) for process in started]
    assert all(process.returncode == 0 for process in started), said
    return [json.loads(out.strip().splitlines()[-1]) for out, _ in said]


@pytest.mark.parametrize("stage", [1, 3])
def test_two_processes_have_the_losses_of_one(stage):
    expected = losses(1, stage)[0]
    for found in losses(2, stage):
        assert found == pytest.approx(expected, rel=1e-6)
