"""Restarts after failures: how often, when, and when not."""

import os
import signal
import subprocess
import sys
import time

import pytest

from launch import supervisor
from launch.supervisor import command_of, supervise
from tests.conftest import ROOT


class Failing:
    """A command with these exit codes, and a new checkpoint of these steps at the end of each start."""

    def __init__(self, folder, *codes, saved=()):
        self.folder, self.codes, self.saved = folder, list(codes), list(saved)
        self.starts, self.slept, self.received = 0, 0.0, []

    def __call__(self, received):
        self.starts, self.received = self.starts + 1, received
        if self.saved and (step := self.saved.pop(0)) is not None:
            (self.folder / "checkpoints" / str(step)).mkdir(parents=True)
        return self.codes.pop(0)

    def sleep(self, seconds):
        self.slept += seconds

    def supervised(self, restarts):
        return supervise(self, str(self.folder), restarts, self.sleep)


@pytest.mark.parametrize(
    ("codes", "saved", "restarts", "code", "starts", "slept"),
    [
        ([0], [], 5, 0, 1, 0),
        ([1, 137, 0], [10, 20], 5, 0, 3, 2),  # each failure after a new checkpoint
        ([1, 1, 0], [10], 5, 0, 3, 121),  # the second wait is longer
        ([1, 1, 3], [10], 5, 3, 3, 121),  # three failures after the same checkpoint
        ([1, 1, 3], [], 5, 3, 3, 121),  # before the first checkpoint
        ([1, 1, 1, 1, 1, 0], [10, None, 20, None, 30], 5, 0, 6, 243),
        ([1, 3], [10, 20], 1, 3, 2, 1),  # no restart is left
        ([3], [], 0, 3, 1, 0),
        ([2], [], 5, 2, 1, 0),  # a usage error
    ],
)
def test_restarts(tmp_path, codes, saved, restarts, code, starts, slept):
    command = Failing(tmp_path, *codes, saved=saved)
    assert command.supervised(restarts) == code
    assert command.starts == starts
    assert command.slept == pytest.approx(slept)


def test_messages(tmp_path, capsys):
    Failing(tmp_path, 137, 1, 1, saved=[20]).supervised(9)
    assert capsys.readouterr().err.splitlines() == [
        "vortaro: The run ended with exit code 137 after the checkpoint of step 20. Restart 1 of 9 in 1 s.",
        "vortaro: The run ended with exit code 1 after the checkpoint of step 20. Restart 2 of 9 in 120 s.",
        "vortaro: The run ended with exit code 1 after the checkpoint of step 20, for the 3rd time. It is not started "
        "again.",
    ]
    Failing(tmp_path, 1, 1, saved=[30]).supervised(1)
    assert capsys.readouterr().err.splitlines()[-1] == (
        "vortaro: The run ended with exit code 1 after the checkpoint of step 30. --restarts=1 allows no further "
        "restart."
    )


def test_an_unreadable_folder_counts_as_no_new_checkpoint(tmp_path, monkeypatch, capsys):
    def last_saved(folder):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(supervisor, "last_saved", last_saved)
    assert Failing(tmp_path, 1, 1, 7).supervised(5) == 7
    assert f"The checkpoints in '{tmp_path}' cannot be read (Input/output error)." in capsys.readouterr().err


@pytest.mark.parametrize("when", ["running", "waiting"])
def test_a_signal_ends_it(tmp_path, when):
    before = signal.getsignal(signal.SIGTERM)
    command = Failing(tmp_path, 1, 0)
    start, sleep = command, command.sleep
    if when == "running":
        start = lambda received: (signal.raise_signal(signal.SIGTERM), command(received))[1]
    else:
        sleep = lambda seconds: signal.raise_signal(signal.SIGTERM)
    assert supervise(start, str(tmp_path), 5, sleep) == 1
    assert command.starts == 1
    assert command.received == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is before


CHILD = """
import os, sys, time
with open("starts", "a") as file:
    file.write(f"{os.getpid()}\\n")
if len(open("starts").readlines()) < 2:
    sys.exit(7)
time.sleep(600)
"""


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    with open(f"/proc/{pid}/stat") as file:  # a process whose parent has not read its exit code
        return file.read().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGKILL])
def test_no_process_is_left(tmp_path, number):
    """The second start is running when the supervisor gets a signal to end, or is killed."""
    words = [*command_of(3, None, sys.executable), sys.executable, "-c", CHILD]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(words, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    starts = tmp_path / "starts"
    wait_for(lambda: starts.exists() and len(starts.read_text().split()) == 2)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert "Restart 1 of 3 in 1 s." in errors
    assert process.returncode == {signal.SIGTERM: 143, signal.SIGUSR1: 138, signal.SIGKILL: -9}[number]
    wait_for(lambda: is_gone(int(starts.read_text().split()[1])))


def test_bad_requests(tmp_path):
    for words, message in (
        (["--restarts=1"], "launch.supervisor needs a command. Add it after `--`."),
        (["--restarts=-1", "--", "true"], "--restarts must be at least 0 (got -1)."),
        (["--restart", "--", "true"], "Unknown flag '--restart'. Did you mean '--restarts'"),
    ):
        line = [sys.executable, "-m", "launch.supervisor", *words]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr
    assert command_of(0, "runs/a", "python") == []
