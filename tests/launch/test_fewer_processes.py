"""A run with a process that cannot be started: without it, and with it again after a checkpoint."""

import time

import pytest

from launch.fewer_processes import FewerProcesses
from layers.errors import UsageError
from testing import launches
from testing.faults.supervised import errors_of
from tests.launch.test_restarts import start
from tests.support.plugins import commands


class Starts:
    """Starts of processes: each fails in a place, ends (None), or saves checkpoints until it is stopped ("stop")."""

    def __init__(self, *ends):
        self.ends, self.places, self.step = list(ends), [], None

    def __call__(self, places, received, stop_now):
        self.places.append(list(places))
        end = self.ends.pop(0)
        if end == "saves":  # a checkpoint, then a failure in place 0
            self.step = (self.step or 0) + 10
            return 1, [0]
        if end == "stop":
            for _ in range(100):
                self.step = (self.step or 0) + 10
                if stop_now():
                    return 0, []
            raise AssertionError("never stopped")
        return (0, []) if end is None else (1, [end])

    def saved(self, before):
        return self.step


def ended(starts, count=4, fewest=1, times=1):
    """Exit codes of several calls of the supervisor."""
    run = FewerProcesses(starts, count, str, fewest, starts.saved)
    return [run([]) for _ in range(times)]


def test_a_place_that_fails_twice_is_left_out_until_a_checkpoint():
    starts = Starts(2, 2, "stop", None)
    assert ended(starts, times=2) == [1, 0]
    assert starts.places == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1], [0, 1, 2, 3]]


def test_the_first_places_that_are_left_are_used():
    starts = Starts(0, 0, None)
    assert ended(starts, times=2) == [1, 0]
    assert starts.places[-1] == [1, 2], "two of four; three would not share the rows of a batch evenly"


def test_failures_in_different_places_or_after_checkpoints_lose_no_place():
    starts = Starts(0, 1, 0, "saves", "saves", None)
    assert ended(starts, times=6) == [1, 1, 1, 1, 1, 0]
    assert all(places == [0, 1, 2, 3] for places in starts.places)


def test_not_fewer_than_allowed():
    starts = Starts(1, 1, 1)
    assert ended(starts, count=2, fewest=2, times=3) == [1, 1, 1]
    assert starts.places == [[0, 1]] * 3


def test_a_place_that_is_lost_again_is_tried_later():
    starts = Starts(1, 1, "stop", 1, 1, "stop", None)
    steps = []
    run = FewerProcesses(starts, 2, str, 1, lambda before: (steps.append(starts.step), starts.step)[1])
    assert [run([]) for _ in range(3)] == [1, 1, 0]
    assert starts.places == [[0, 1], [0, 1], [0], [0, 1], [0, 1], [0], [0, 1]]
    assert starts.step == 10 + 20, "after one checkpoint, then after two"


def test_a_finished_run_is_not_started_again():
    """Its last checkpoint is new, too."""
    starts = Starts(1, 1, "stop")
    run = FewerProcesses(starts, 2, str, 1, starts.saved, lambda: True)
    assert [run([]), run([])] == [1, 0]
    assert starts.places[-1] == [0]


def test_several_failures_at_once_lose_no_place():
    starts = Starts(1, 1, None)
    run = FewerProcesses(lambda *given: (starts(*given)[0], []), 2, str, 1, starts.saved)
    assert [run([]) for _ in range(3)] == [1, 1, 0]
    assert starts.places == [[0, 1]] * 3


def test_several_places_are_lost_together():
    """Those that fail in both starts; the exit code of a planned stop does not matter."""
    given = [(1, [1, 2, 3]), (1, [2, 3]), "stop", (0, [])]
    places, step = [], [0]

    def run(where, received, stop_now):
        places.append(list(where))
        if (result := given.pop(0)) == "stop":
            step[0] += 10
            assert stop_now()
            return 1, []
        return result

    fewer = FewerProcesses(run, 4, str, 1, lambda before: step[0])
    assert [fewer([]), fewer([])] == [1, 0]
    assert places == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1], [0, 1, 2, 3]]


def test_a_signal_ends_it():
    starts = Starts(1, 1, "stop")
    received = []
    run = FewerProcesses(starts, 2, str, 1, starts.saved)
    assert run(received) == 1
    received.append(15)
    assert run(received) == 1
    assert len(starts.places) == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--fewest=3", "--restarts=1"], "--fewest must be at most --num_processes = 2 (got 3)."),
        (["--fewest=1"], "--fewest needs --restarts. Add --restarts=N."),
        (["--fewest=0", "--restarts=1"], "--fewest must be at least 1 (got 0)."),
    ],
)
def test_bad_requests(flags, message):
    from launch.command_line import parse

    with pytest.raises(UsageError) as error:
        parse(["local", "--num_processes=2", *flags, "--", "--exp=tiny.StdlibTiny", "--workdir=runs/a"])
    assert str(error.value) == message


@pytest.mark.slow
def test_a_run_loses_a_process_and_takes_it_back(tmp_path):
    """Process 1 exits at its start while the file `lost` exists. The losses are those of an undisturbed process."""
    (tmp_path / "losing.py").write_text(
        "import os, pathlib\n"
        "if os.environ.get('JAX_LOCAL_DEVICE_IDS') == '1' and pathlib.Path('lost').exists():\n"
        "    os._exit(1)\n"
    )
    calm, workdir = tmp_path / "calm", tmp_path / "lost_one"
    flags = ["--import=losing"]
    done = commands.inside(tmp_path, "runners.main", *launches.command(calm)[3:], devices=4)
    assert done.returncode == 0, done.stderr
    (tmp_path / "lost").touch()
    process = start(workdir, 2, 10, launcher=["--fewest=1"], runner=flags)
    deadline = time.monotonic() + 300
    while not launches.saved_steps(workdir) and time.monotonic() < deadline:
        time.sleep(0.05)
    (tmp_path / "lost").unlink()
    code, errors = process.wait(timeout=600), errors_of(workdir).read_text()
    assert code == 0, errors
    assert "Process 1 failed first again without a new checkpoint. The run continues with 1 process." in errors
    assert "The run saved a checkpoint and is started with all 2 processes again." in errors
    ours, theirs = (launches.metrics(folder) for folder in (workdir, calm))
    pick = lambda lines, name: [line[name] for line in lines if line["split"] == "train"]
    assert pick(ours, "tokens_seen") == pick(theirs, "tokens_seen")
    assert pick(ours, "loss") == pytest.approx(pick(theirs, "loss"), rel=1e-3)
