"""Metrics of runs: the quick summary equals a complete reading; curves over each axis."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.runs.metrics import Curve, curve, higher_is_better, in_order_of_file, lines_of, summary, with_seconds
from tests.support.run_folders import lines_of as made

LOSSES = {10: 4.0, 20: 2.0, 30: 3.0}


def text(lines) -> bytes:
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def test_summary():
    found = summary(text(made(LOSSES)))
    assert (found.train["step"], found.train["loss"], found.train["tokens_seen"]) == (30, 4.0, 300)
    assert (found.validation["step"], found.validation["loss"]) == (30, 3.0)
    assert (found.best["step"], found.best["loss"], found.step) == (20, 2.0, 30)


@pytest.mark.parametrize("content", [b"", b"\n", b'{"step": 1, "spl', b"[1]\n", b'{"step": 1}\n'])
def test_nothing_to_summarize(content):
    found = summary(content)
    assert (found.train, found.validation, found.best, found.step) == ({}, {}, {}, 0)


@given(st.integers(0, 400))
def test_a_crash_cuts_a_line_at_any_character(cut):
    whole = text(made(LOSSES))
    content = whole[: len(whole) - cut]
    lines = [json.loads(line) for line in content.splitlines() if line.endswith(b"}")]
    assert lines_of(content) == lines
    validation = [line for line in lines if line["split"] == "validation"]
    found = summary(content)
    assert found.validation == (validation[-1] if validation else {})
    assert found.best == min(validation, key=lambda line: line["loss"], default={})


@pytest.mark.parametrize("cut", ["3.", "3.4e", "3.4e-", "-", ""])
def test_a_cut_line_that_the_next_one_continues_hides_no_other(cut):
    broken = b'{"step": 15, "split": "validation", "loss": ' + cut.encode()
    whole = text(made(LOSSES)).splitlines(keepends=True)
    found = summary(b"".join([*whole[:2], broken, *whole[2:]]))
    assert (found.best["step"], found.best["loss"], found.validation["step"]) == (20, 2.0, 30)


def test_evaluations_of_earlier_checkpoints_are_not_the_last():
    """`--mode=validation --checkpoint=...` appends its line."""
    lines = [*made(LOSSES), {"step": 15, "split": "validation", "loss": 9.0}]
    lines += [{"step": step, "split": "evals", "t/acc,none": step / 100, "t/documents": 5} for step in (30, 10)]
    found = summary(text(lines))
    assert (found.validation["step"], found.evals) == (30, {"t/acc,none": 0.3, "t/documents": 5})
    assert curve(lines_of(text(lines)), "loss").x == (10, 15, 20, 30)
    assert curve(lines_of(text(lines)), "t/acc,none", split="evals").y == (0.1, 0.3)


def test_a_loss_that_is_not_finite_is_not_the_best():
    lines = [*made(LOSSES), {"step": 40, "split": "validation", "loss": None}]
    found = summary(text(lines))
    assert (found.validation["step"], found.best["step"]) == (40, 20)


def test_seconds_are_those_of_updates():
    lines = with_seconds([*made({10: 4.0}, rate=2.0), *made({30: 3.0}, rate=4.0)])
    assert [line["seconds"] for line in lines] == [5.0, 5.0, 10.0, 10.0]


@pytest.mark.parametrize(
    ("axis", "places"), [("step", (10, 20, 30)), ("tokens", (100, 200, 300)), ("flops", (1000, 2000, 3000))]
)
def test_curves(axis, places):
    found = curve(with_seconds(made(LOSSES)), "loss", axis=axis)
    assert (found.x, found.y) == (places, (4.0, 2.0, 3.0))
    assert curve(with_seconds(made(LOSSES)), "loss", axis="seconds").x == (5.0, 10.0, 15.0)
    assert curve(made(LOSSES), "loss", split="train").y == (5.0, 3.0, 4.0)


def test_validation_between_two_lines_of_training_is_between_their_tokens():
    lines = [*made(LOSSES), {"step": 25, "split": "validation", "loss": 1.0}]
    lines.sort(key=lambda line: line["step"])
    found = curve(lines, "loss", axis="tokens")
    assert found.x == (100, 200, 250, 300)


def test_a_curve_between_and_outside_its_points():
    found = Curve((10, 20, 40), (4.0, 2.0, 3.0))
    assert [found.at(x) for x in (10, 15, 20, 30, 40)] == [4.0, 3.0, 2.0, 2.5, 3.0]
    assert (found.at(9), found.at(41), Curve((), ()).at(1)) == (None, None, None)
    assert (found.best(), found.best(higher=True)) == ((20, 2.0), (10, 4.0))


def test_an_axis_that_is_not_recorded_has_no_curve():
    lines = [{name: value for name, value in line.items() if name != "flops"} for line in made(LOSSES)]
    assert curve(lines, "loss", axis="flops").x == ()


@pytest.mark.parametrize(
    ("name", "is_higher"),
    [("loss", False), ("accuracy", True), ("arc_easy/acc,none", True), ("wiki/perplexity", False)],
)
def test_direction(name, is_higher):
    assert higher_is_better(name) == is_higher


@pytest.mark.parametrize(
    "line",
    [
        b'{"step": -1, "split": "validation", "loss": 0.1}',
        b'{"step": true, "split": "validation", "loss": 0.1}',
        b'{"step": 15, "split": "validation", "loss": "0.1"}',
        b'{"step": 15, "split": "validation", "loss": 0.1, "extra": []}',
        b'{"step": 15, "split": "validation", "loss": 1' + b"0" * 400 + b"}",
        b'{"step": 15, "split": "validation", "loss": 0.1, "\xff": 1}',
        b'{"split": "validation", "step": ' + b"[" * 100_000,
    ],
)
def test_damaged_lines_are_left_out(line):
    good = text(made(LOSSES))
    assert lines_of(good + line) == lines_of(good)
    assert summary(good + line) == summary(good)


def test_numbers_that_are_not_finite_are_missing():
    (line,) = lines_of(b'{"step": 1, "split": "train", "loss": NaN, "norm": Infinity}')
    assert line == {"step": 1, "split": "train", "loss": None, "norm": None}


def test_lines_about_processes_are_kept_and_not_shown_as_scalars():
    slow = {"step": 7, "split": "processes", "slow": {"process": 1, "host": "b", "seconds": 2.0}}
    content = "\n".join(json.dumps(line) for line in ({"step": 7, "split": "train", "loss": 1.0}, slow)).encode()
    assert in_order_of_file(content)[1] == slow
    assert [line["split"] for line in lines_of(content)] == ["train"]


def test_large_integers_and_other_values_stay_in_the_file():
    """A resumed run writes the file again: only truncated lines may be lost."""
    lines = [
        {"step": 1, "split": "train", "loss": 2.0, "flops": 10**21},
        {"step": 2, "split": "train", "loss": "2"},
        {"step": 3, "split": "train", "flops": 10**400},
    ]
    content = ("\n".join(map(json.dumps, lines)) + '\n{"step": 4, "spl').encode()
    assert in_order_of_file(content) == lines
    assert lines_of(content) == lines[:1]
    assert summary(content).train == lines[0]
