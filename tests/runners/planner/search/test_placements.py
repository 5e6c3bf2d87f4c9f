"""A search finds the winner of an exhaustive one with a fifth of its compilations, by the figures of slices.py.

Quick tests read placements.json; the slow ones compile.
"""

import json

import pytest

from runners.planner.machine import Machine
from runners.planner.search.best_first import Excluded, best_first
from runners.planner.search.plans import Plans
from runners.reports.results import Results
from tests.runners.planner.search.slices import DEVICES, FILE, SLICES

RECORDED = json.loads(FILE.read_text())


class Recorded:
    """The problem of a slice; `compiled` are the programs of its completed cases."""

    def __init__(self, family):
        self.rows = {tuple(row["sets"]): row for row in RECORDED[family]}
        self.capacity, self.compiled = SLICES[family].chip.hbm_bytes, []

    @property
    def bounds(self):
        return [lambda case: self._bound(case, "table"), lambda case: self._bound(case, "trace")]

    def _bound(self, case, name):
        bound = self.rows[tuple(case.sets)][name]
        return Excluded(bound) if isinstance(bound, str) else tuple(bound)

    def complete(self, case):
        row = self.rows[tuple(case.sets)]
        if row["program"] is not None and row["program"] not in self.compiled:
            self.compiled.append(row["program"])
        if isinstance(row["rank"], str) or row["peak"] > self.capacity:
            return row, Excluded("does not fit, or is not valid")
        return row, tuple(row["rank"])


@pytest.mark.parametrize("family", SLICES)
def test_the_winner_is_that_of_an_exhaustive_search(family):
    cases, search, exhaustive = SLICES[family].cases, Recorded(family), Recorded(family)
    found = best_first(cases, search)
    all_of_them = best_first(cases, exhaustive, exhaustive=True)
    assert found.best == all_of_them.best
    assert found.best is not None
    assert 0 < len(search.compiled) <= len(exhaustive.compiled) / 5


@pytest.mark.parametrize("family", SLICES)
def test_the_recording_has_every_case_and_leaves_a_choice(family):
    part, rows = SLICES[family], RECORDED[family]
    assert [row["sets"] for row in rows] == [case.sets for case in part.cases]
    fit = [row["peak"] <= part.chip.hbm_bytes for row in sorted(rows, key=lambda row: row["rank"])]
    assert sum(fit) > len(rows) / 2
    assert fit[0] is (family == "gshard"), "gpt and vq: the fastest case does not fit"


@pytest.mark.parametrize("family", SLICES)
@pytest.mark.parametrize("wrong", ["table", "trace"])
def test_a_bound_above_the_rank_loses_the_winner(family, wrong, monkeypatch):
    winner = best_first(SLICES[family].cases, Recorded(family)).best
    assert winner is not None
    monkeypatch.setitem(winner[1], wrong, [1e3, 1e3])  # seconds
    found = best_first(SLICES[family].cases, Recorded(family))
    assert found.best is not None
    assert found.best[0] != winner[0]


@pytest.mark.parametrize("family", SLICES)
def test_bounds_are_lower_bounds(family):
    for row in RECORDED[family]:
        if isinstance(row["rank"], list):
            assert all(bound <= number for bound, number in zip(row["table"], row["rank"], strict=True)), row
            assert all(bound <= number for bound, number in zip(row["trace"], row["rank"], strict=True)), row


def compiled_live(part, folder):
    machine = Machine(chip=part.chip, virtual_devices=DEVICES)
    return Plans(part.experiment, machine, "train", machine.devices(part.experiment), Results(folder / "layouts.jsonl"))


@pytest.mark.slow
def test_a_live_search_equals_a_live_exhaustive_one(tmp_path):
    part = SLICES["gshard"]
    search, exhaustive = compiled_live(part, tmp_path / "a"), compiled_live(part, tmp_path / "b")
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    found = best_first(part.cases, search)
    all_of_them = best_first(part.cases, exhaustive, exhaustive=True)
    assert found.best is not None
    assert all_of_them.best is not None
    assert found.best[0] == all_of_them.best[0]
    assert 0 < search.compiled <= exhaustive.compiled / 5
    rows = {tuple(row["sets"]): row for row in RECORDED["gshard"]}
    for case, plan in all_of_them.complete:
        row, ranked = rows[tuple(case.sets)], [plan["roofline_step_seconds"], sum(plan["roofline"].values())]
        assert row["rank"] == pytest.approx(ranked), "placements.json is of an earlier version"
        assert row["peak"] == plan["memory_bytes_per_device"]["peak"]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt", "vq"])
def test_the_recorded_winner_is_as_fast_as_recorded(family, tmp_path):
    part, recorded = SLICES[family], best_first(SLICES[family].cases, Recorded(family)).best
    assert recorded is not None
    _, rank = compiled_live(part, tmp_path).complete(recorded[0])
    assert rank == pytest.approx(tuple(recorded[1]["rank"])), "placements.json is of an earlier version"
