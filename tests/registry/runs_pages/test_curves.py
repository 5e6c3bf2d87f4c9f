"""Curves of runs: few points that keep extremes, axes by tokens, FLOPs and seconds, figures by group."""

import math

import pytest

from registry.runs.metrics import with_seconds
from registry.runs_pages.curves import MOST_POINTS, curves, downsampled, groups, panel
from registry.runs_pages.task_results import is_result, last
from tests.support.runs_with_curves import metrics


def test_short_curves_keep_every_point():
    assert downsampled([1, 2, 3], [1.0, None, 3.0]) == ([1, 2, 3], [1.0, None, 3.0])


def test_long_curves_keep_their_ends_and_the_extremes_of_each_bucket():
    steps = list(range(100_000))
    values: list[float | None] = [math.sin(step / 500) for step in steps]
    values[31_337], values[77_777] = 50.0, -50.0
    values[40_000:50_000] = [None] * 10_000
    kept, found = downsampled(steps, values)
    assert MOST_POINTS // 2 < len(kept) <= MOST_POINTS
    assert kept == sorted(set(kept))
    assert (kept[0], kept[-1]) == (0, 99_999)
    assert {50.0, -50.0} <= set(found), "a spike stays visible"
    gap = [value for step, value in zip(kept, found, strict=True) if 40_200 < step < 49_800]
    assert gap
    assert set(gap) == {None}, "a gap stays a gap"
    assert all(found[index] == values[step] for index, step in enumerate(kept))


def test_axes_are_what_was_reached_at_each_line_of_training():
    content = curves(with_seconds(metrics(30, every=5)))
    assert content["axes"]["step"] == [5, 10, 15, 20, 25, 30]
    assert content["axes"]["tokens"] == [256 * step for step in content["axes"]["step"]]
    assert content["axes"]["flops"] == [1000 * step for step in content["axes"]["step"]]
    assert content["axes"]["seconds"] == [step / 2 for step in content["axes"]["step"]], "two steps a second"


def test_seconds_are_summed_over_windows_of_different_speed():
    speeds = {10: 5.0, 20: 2.0, 25: 1.0}
    lines = [{"step": step, "split": "train", "loss": 1.0, "steps_per_second": rate} for step, rate in speeds.items()]
    assert curves(with_seconds(lines))["axes"]["seconds"] == [2, 7, 12]


def test_an_axis_that_lines_lack_is_not_offered():
    content = curves(with_seconds(metrics(10, flops=False)))
    assert "flops" not in content["axes"]
    page = panel("run", groups([content]), content["axes"])
    assert '<label class="choice" hidden><input type="radio" name="x" value="flops">' in page
    assert '<label class="choice"><input type="radio" name="x" value="tokens">' in page
    mixed = metrics(10, flops=False) + [line | {"step": line["step"] + 10} for line in metrics(10)]
    assert "flops" not in curves(with_seconds(mixed))["axes"], "an earlier version wrote the first lines"


def test_axes_of_long_runs_are_short_and_end_with_the_run():
    axes = curves(with_seconds(metrics(9_999)))["axes"]
    assert len(axes["step"]) == len(axes["tokens"]) <= MOST_POINTS
    assert axes["step"][-1] == 9_999


def test_series_by_split_without_axes_and_texts():
    series = curves(with_seconds(metrics(30)))["series"]
    assert set(series["loss"]) == {"train", "validation"}
    assert series["loss"]["validation"][0] == [10, 20, 30]
    assert not {"tokens_seen", "flops", "seconds", "steps_per_second", "step", "split"} & set(series)
    never = curves([{"step": 1, "split": "train", "loss": None, "mode": "x"}])["series"]
    assert never == {}, "no value was finite"


def test_figures_are_grouped_by_what_reports_them():
    lines = [*metrics(20), {"step": 10, "split": "evals", "a/acc": 0.5, "a/acc_stderr": 0.1, "a/documents": 4}]
    lines.append({"step": 20, "split": "evals", "a/acc": 0.6, "a/acc_stderr": 0.1, "a/documents": 4, "b/f1": 1.0})
    made = {group.title: list(group.curves) for group in groups([curves(lines)])}
    assert made["Curves"] == ["loss", "bits_per_byte", "learning_rate", "grad_norm"]
    assert made["Reported by layers"] == ["router_load_max"]
    assert made["Evaluation tasks"] == ["a/acc"], "errors, amounts and single results have no curve"
    assert made["Speed and more"] == ["tokens_per_second"]


def test_names_of_metrics_are_escaped():
    name = "<script>alert(1)</script>"
    page = panel("run", groups([curves([{"step": 1, "split": "train", name: 1.0}])]), ["step"])
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize(
    ("name", "expected"), [("a/acc", True), ("a/acc_stderr", False), ("a/shots", False), ("a/acc_stderr,none", False)]
)
def test_standard_errors_and_amounts_are_not_results(name, expected):
    assert is_result(name) == expected


def test_the_last_results_of_each_task():
    lines = [{"step": step, "a/acc": 0.1 * step, "a/acc_stderr": 0.05, "a/documents": 8} for step in (1, 2)]
    assert last(lines) == [("2", "a", "acc", "0.2000", "0.0500", "8", "")]
