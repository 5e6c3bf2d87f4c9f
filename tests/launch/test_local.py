"""Processes on this machine, real ones."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import ROOT


def start(folder, count, action, out=subprocess.PIPE):
    """The launcher with a fake runner."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.processes.fake_runner", "start", str(folder), str(count), action],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=out,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_processes_find_each_other_and_the_first_one_talks(tmp_path):
    out, err = (started := start(tmp_path / "logs", 3, "print")).communicate(timeout=600)
    assert (started.returncode, err) == (0, "")
    [first] = re.findall(r"^process 0 of (.*)$", out, re.MULTILINE)
    port = re.search(r"--coordinator=localhost:(\d+)", first)
    assert port is not None
    assert "process 1 of" not in out
    assert str(tmp_path / "logs") in out
    logs = sorted((tmp_path / "logs").iterdir())
    assert [log.name for log in logs] == ["process_1.log", "process_2.log"]
    for index, log in enumerate(logs, start=1):
        place = [f"--coordinator=localhost:{port[1]}", "--num_processes=3", f"--process_id={index}"]
        assert log.read_text() == f"process {index} of {place}\n"


def test_it_ends_with_the_code_of_the_first_that_failed(tmp_path):
    _, err = (started := start(tmp_path, 3, "fail")).communicate(timeout=600)
    assert started.returncode == 3
    assert err.splitlines()[0] == (
        f"vortaro: Process 1 ended with exit code 3 (its output: {tmp_path / 'process_1.log'})."
    )


@pytest.mark.slow
def test_it_reports_the_signal_that_killed_a_process(tmp_path):
    _, err = (started := start(tmp_path, 2, "die")).communicate(timeout=600)
    assert started.returncode == 128 + signal.SIGKILL
    assert err == f"vortaro: Process 1 was killed by SIGKILL (its output: {tmp_path / 'process_1.log'}).\n"


@pytest.mark.slow
def test_one_that_outlives_a_failed_one_is_killed(tmp_path):
    _, err = (started := start(tmp_path, 2, "linger")).communicate(timeout=600)
    assert started.returncode == 3
    assert "Process 0 did not exit in time and is killed." in err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_each_process_once(tmp_path, number):
    logs = [tmp_path / f"process_{index}.log" for index in range(3)]
    with logs[0].open("w") as terminal:
        started = start(tmp_path, 3, "wait", terminal)
    while not all(log.exists() and "up\n" in log.read_text() for log in logs):
        assert started.poll() is None
        time.sleep(0.05)
    os.killpg(started.pid, number)  # as a terminal does
    _, err = started.communicate(timeout=600)
    assert (started.returncode, err) == (0, "")
    for log in logs:
        assert log.read_text().endswith(f"signals [{int(number)}]\n")
