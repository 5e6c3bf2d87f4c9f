"""Seconds of runs by what was done in them."""

import math
import random

import pytest

from registry.runs.goodput import Goodput, goodput, times_of


def test_kept_repeated_other_and_idle_seconds():
    lines = [
        {"time": 0.0, "step": 0, "starts": True},
        {"time": 14.0, "step": 10, "updates": 10.0},  # 4 seconds of compilation
        {"time": 24.0, "step": 20, "updates": 10.0},  # killed here; a checkpoint of step 15
        {"time": 40.0, "step": 15, "starts": True},
        {"time": 50.0, "step": 20, "updates": 5.0},
        {"time": 60.0, "step": 25},  # the end, without a report
    ]
    spent = goodput(lines)
    assert spent == Goodput(useful=10 + 5 + 5, repeated=5, overhead=4 + 5 + 10, idle=16)
    assert (spent.lost, spent.wall, spent.share) == (24, 60, 20 / 60)
    assert [share for *_, share in spent.parts()] == ["33.3%", "8.3%", "31.7%", "26.7%"]


def test_a_checkpoint_lost_later_makes_earlier_updates_repeated():
    starts = [0, 10, 5]  # the third start found the checkpoint of step 10 damaged
    lines = []
    for number, step in enumerate(starts):
        lines.append({"time": 20.0 * number, "step": step, "starts": True})
        lines.append({"time": 20.0 * number + 10, "step": step + 10, "updates": 10.0})
    assert goodput(lines) == Goodput(useful=5 + 0 + 10, repeated=5 + 10, overhead=0, idle=20)


def test_long_runs_are_read_in_time_that_grows_with_their_lines():
    lines = [{"time": float(step), "step": step, "updates": 1.0} for step in range(1, 200_000)]
    spent = goodput([{"time": 0.0, "step": 0, "starts": True}, *lines])
    assert spent.useful == len(lines)


def test_runs_without_times():
    assert goodput([]).share is None
    assert goodput([{"time": 3.0, "step": 0, "starts": True}]).wall == 0


@pytest.mark.parametrize("seed", range(20))
def test_disturbed_runs(seed):
    """A run on a made-up clock, killed at random; what it did is known."""
    rng, clock, step, saved, lines = random.Random(seed), 0.0, 0, 0, []
    done = []  # the second of each update by step, the last one counts
    truth = {"overhead": 0.0, "idle": 0.0}
    while step < 200:
        step = saved
        lines.append({"time": clock, "step": step, "starts": True})
        start = rng.uniform(5, 20)
        clock, truth["overhead"] = clock + start, truth["overhead"] + start
        dies_at, window = rng.choice([math.inf, step + rng.randrange(1, 90)]), 0.0
        while step < 200:
            seconds = rng.uniform(0.5, 1.5)
            clock, window, step = clock + seconds, window + seconds, step + 1
            done.append((step, seconds))
            if step % 10 == 0:
                lines.append({"time": clock, "step": step, "updates": window})
                window = 0.0
            if step % 30 == 0:
                saved, save = step, rng.uniform(0, 3)
                clock, truth["overhead"] = clock + save, truth["overhead"] + save
            if step >= dies_at:
                break
        gap = rng.uniform(0, 30)
        if step < 200:
            clock, truth["idle"] = clock + gap, truth["idle"] + gap
    spent = goodput(lines)
    assert spent.useful + spent.lost + spent.idle == pytest.approx(clock - lines[0]["time"], rel=0.01)
    useful = sum(dict(done).values())
    unreported = 20 * sum(bool(line.get("starts")) for line in lines)  # seconds after the last report of each start
    assert spent.useful == pytest.approx(useful, abs=unreported)
    assert spent.overhead == pytest.approx(truth["overhead"], abs=unreported)
    assert spent.idle == pytest.approx(truth["idle"], abs=unreported)
    assert spent.share == spent.useful / spent.wall


def test_damaged_lines_are_left_out(tmp_path):
    good = b'{"time": 0.0, "step": 0, "starts": true}\n{"time": 2.5, "step": 1, "updates": 2.0}\n'
    odd = [b"[]", b"\xff", b'{"time": "1", "step": 0}', b'{"time": 1e999, "step": 0}', b'{"step": 0}', b"[" * 100_000]
    (tmp_path / "times.jsonl").write_bytes(good + b"\n".join(odd))
    assert [line["time"] for line in times_of(tmp_path)] == [0.0, 2.5]
