"""Disturbed runs end in the bits of undisturbed ones; the full table is `make faults`."""

import json
import shutil

import pytest

from benchmarks.faults import disturb, table
from testing.faults.scenarios import OTHER, SAME, SKIPPED, STOPPED, Bench, Outcome
from testing.launches import differing, metrics


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """Undisturbed runs are shared."""
    return Bench(tmp_path_factory.mktemp("faults"), seed=1, small=True)


# Notices, silent and stuck processes: tests/runners/processes/test_processes_stop.py.
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "least"), [("kill", 4), ("damage", 4), ("full", 1)])
def test_disturbed_and_restarted_it_ends_in_the_same_bits(bench, kind, least):
    outcomes = disturb(bench, [kind])
    if outcomes[0].result == SKIPPED:
        pytest.skip(outcomes[0].detail)
    assert [outcome for outcome in outcomes if outcome.result != SAME] == []
    assert len(outcomes) >= least, "the runs were over before they could be disturbed"


@pytest.mark.slow  # its run is that of the disturbed ones
def test_one_changed_figure_is_a_difference(bench, tmp_path):
    calm = bench.calm((1, 1))
    copy = shutil.copytree(calm, tmp_path / "copy")
    assert differing(calm, copy) == []
    lines = metrics(copy)
    lines[3]["grad_norm"] *= 1 + 1e-15
    (copy / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shutil.rmtree(copy / "checkpoints" / "120")
    found = differing(calm, copy)
    assert "metrics.jsonl" in found
    assert "step" in found
    assert len(found) > 20, "weights and moments differ at step 110"


def test_the_table_counts_what_came_of_each():
    results = [("a", SAME), ("a", OTHER), ("b", STOPPED), ("c", SKIPPED)]
    rows = table([Outcome(row, result, "") for row, result in results]).splitlines()
    assert rows[2:] == ["| a | 2 | 1 | 0 | 1 |", "| b | 1 | 0 | 1 | 0 |", "| c | skipped | | | |"]
