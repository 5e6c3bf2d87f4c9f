"""Processes that are slower than the others in two comparisons in a row are reported once, with their host."""

import json

import jax
import pytest

from runners.processes.coordination import ProcessGroup
from runners.training.health import slow_processes
from runners.training.health.slow_processes import Rule, Slow, SlowProcesses, computation_seconds
from tests.support.processes.starting import run

DELAYED = """
import time
import jax
from registry.experiment import register
from registry.experiments.tiny import StdlibTiny
from runners.training.health import slow_processes
from tasks.inputs.indexed import InputIterator

@register
class Delayed(StdlibTiny):
    '''The batches of process 1 take longer than an update, and processes are compared often.'''

def delayed(self, before=InputIterator.__next__):
    time.sleep(0.6 * jax.process_index())
    return before(self)

InputIterator.__next__ = delayed
slow_processes.SECONDS = 0.0
"""


def seconds(*batches, computation=0.01):
    return {index: {"batches": value, "computation": computation} for index, value in enumerate(batches)}


def test_a_process_is_slow_in_the_second_comparison_and_is_found_once():
    rule, odd = Rule(), seconds(0.3, 0.31, 0.29, 2.4)
    assert rule.found(odd) == []
    assert rule.found(odd) == [Slow(3, "batches", 2.4, 0.3)]
    assert rule.found(odd) == []
    assert rule.found(seconds(0.3, 0.3, 0.3, 0.3)) == []
    assert [rule.found(odd), rule.found(odd)] == [[], [Slow(3, "batches", 2.4, 0.3)]], "it was not slow in between"


@pytest.mark.parametrize(
    "values",
    [
        seconds(0.3, 0.3, 0.3, 0.59),  # below the factor
        seconds(0.001, 0.001, 0.001, 0.019),  # below the floor
        seconds(2.4, 2.4, 2.4, 0.3),  # one is faster than the others
    ],
)
def test_processes_that_are_not_slow(values):
    rule = Rule()
    assert rule.found(values) == rule.found(values) == []


def test_one_of_two_processes_and_a_slow_device():
    rule = Rule()
    slow_device = {0: {"batches": 0.0, "computation": 0.05}, 1: {"batches": 0.3, "computation": 0.012}}
    rule.found(slow_device)
    assert rule.found(slow_device) == [Slow(1, "batches", 0.3, 0.0), Slow(0, "computation", 0.05, 0.012)]


class Store(ProcessGroup):
    """Process 0 of two; the messages of the other one are given."""

    def __init__(self):
        super().__init__(client=None, index=0, count=2)
        self.messages = {}

    def put(self, key, value, *, again=False):
        if key == slow_processes.NEXT:
            return True
        self.messages[int(key.rpartition("/")[2])] = value
        return True

    def get_all(self, folder):
        return self.messages


def test_the_line_and_the_record(monkeypatch):
    monkeypatch.setattr(slow_processes, "SECONDS", 0.0)
    monkeypatch.setattr(slow_processes, "AHEAD", 0)
    monkeypatch.setattr(slow_processes, "computation_seconds", lambda: 0.01)
    store, printed, records = Store(), [], []
    slow = SlowProcesses(store, printed.append, lambda *record: records.append(record))
    for number in (1, 2, 2, 3):  # the third comparison has no new message of process 1
        other = {"batches": 2.4, "computation": 0.01}
        message = {"number": number, "host": "host-7", "devices": ["gpu:8"], "seconds": other}
        store.messages[1] = json.dumps(message)
        slow.next(iter([1]))
        slow.measure(10 * number, jax.numpy.int32(0))
    [line] = printed
    assert line.startswith(
        "Process 1 (host-7) is slow: its batches took 2.4 s per update, the median of 2 processes is"
    )
    [(step, name, content)] = records
    assert (step, name, content["process"], content["devices"]) == (20, "slow", 1, ["gpu:8"])


class Shared(ProcessGroup):
    """A process whose key-value store is a dictionary."""

    def __init__(self, index, values):
        super().__init__(client=None, index=index, count=2)
        self.values = values

    def put(self, key, value, *, again=False):
        self.values[key] = value
        return True

    def get(self, key):
        return self.values.get(key)

    def get_all(self, folder):
        return {}


def test_all_processes_measure_after_the_same_windows(monkeypatch):
    """Whatever their clocks show: process 1 began later."""
    values, measured, now = {}, {0: [], 1: []}, [0.0]
    monkeypatch.setattr(slow_processes.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(slow_processes, "computation_seconds", lambda: 0.01)
    processes = []
    for index in (0, 1):
        now[0] = 3.0 * index
        processes.append(SlowProcesses(Shared(index, values), print, lambda *record: None))
    for window in range(1, 31):
        now[0] = 3.0 + window
        for index, process in enumerate(processes):
            before = process._number
            process.measure(window, jax.numpy.int32(0))
            measured[index] += [window] * (process._number - before)
    assert measured[0] == measured[1]
    assert len(measured[0]) == 2


def test_the_computation_runs_in_the_mesh_of_a_run_without_collectives():
    with jax.set_mesh(jax.make_mesh((8,), ("data",))):
        assert 0 < computation_seconds() < 10
    with jax.set_mesh(jax.make_mesh((8,), ("device",))):
        program = slow_processes._computation.lower(64, 2).compile().as_text()
    assert not any(name in program for name in ("all-reduce", "all-gather", "collective-permute"))


@pytest.mark.slow
def test_a_process_with_slow_batches_is_reported(tmp_path):
    (tmp_path / "delayed.py").write_text(DELAYED)
    settings = ("NUM_STEPS=24", "LOG_EVERY=2", "EVAL_EVERY=none", "EVAL_ROWS=8")
    flags = ["--smoke", "--no-tensorboard", *(f"--set={setting}" for setting in settings), "--workdir=run"]
    ended = run("runners.main", 2, 1, ["--exp=delayed.Delayed", *flags], tmp_path)
    [line] = [line for line in ended[0].stdout.splitlines() if "is slow: its batches" in line]
    assert line.startswith("Process 1 (")
    assert "the median of 2 processes is" in line
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    [record] = [r["slow"] for r in records if r["split"] == "processes" and r["slow"]["measure"] == "batches"]
    assert record["process"] == 1
    assert record["seconds"] > 0.1
    assert len(record["devices"]) == 1
    assert (tmp_path / "run" / "report.html").exists()
