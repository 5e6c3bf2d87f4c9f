"""The input's state in checkpoints: one process, and real ones."""

import json
import os
import socket
import subprocess
import sys

import pytest

from runners.training.input_state import gathered, own
from tests.conftest import ROOT


def test_one_process_keeps_its_state_as_it_is():
    state = {"next_batch": 3, "snapshot": None}
    assert gathered(state) is state
    assert own(state) is state
    assert own({"next_batch": 3}) == {"next_batch": 3}
    assert own(None) is None


def test_a_state_of_more_processes_is_read_through_with_a_notice(capsys):
    assert own({"next_batch": 3, "hosts": [{"next_batch": 3, "snapshot": None}] * 2}) == {"next_batch": 3}
    assert "saved by 2 processes, and now there are 1" in capsys.readouterr().out


@pytest.mark.slow
def test_each_process_finds_its_own_state_again():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "XLA_FLAGS": "", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.support.processes.two_readers", str(port), "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [subprocess.Popen([*command, str(i)], env=environment, cwd=ROOT, **pipes) for i in range(2)]
    outputs = [process.communicate(timeout=120) for process in started]
    assert all(process.returncode == 0 for process in started), outputs
    first, second = (json.loads(out.strip().splitlines()[-1]) for out, _ in outputs)
    assert first["saved"] == second["saved"]
    assert [len(host["snapshot"]["files"]["a"]) for host in first["saved"]["hosts"]] == [3, 13]
    assert first["own"]
    assert second["own"]
    assert first["plain"] == first["other"] == {"next_batch": 7}
    assert "saved by 3 processes, and now there are 2" in outputs[0][0]
    assert "saved by" not in outputs[1][0]
