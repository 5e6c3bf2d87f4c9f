"""Runs with faults end in the same bits as runs without; the full table is `make faults`."""

import json
import shutil

import pytest

from benchmarks.faults import run_scenarios, table
from testing.faults.scenarios import OTHER, SAME, SKIPPED, STOPPED, Bench, Outcome
from testing.launches import differences, metrics


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """Runs without faults are shared."""
    return Bench(tmp_path_factory.mktemp("faults"), seed=1, small=True)


# Signals, silent and stuck processes: tests/runners/processes/test_processes_stop.py.
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "least"), [("kill", 3), ("corruption", 4), ("full", 1)])
def test_a_run_with_faults_and_restarts_ends_in_the_same_bits(bench, kind, least):
    outcomes = run_scenarios(bench, [kind])
    if outcomes[0].result == SKIPPED:
        pytest.skip(outcomes[0].detail)
    assert [outcome for outcome in outcomes if outcome.result != SAME] == []
    assert len(outcomes) >= least, "the runs ended before the faults"


@pytest.mark.slow  # shares its run without faults
def test_one_changed_figure_is_a_difference(bench, tmp_path):
    reference = bench.reference((1, 1))
    copy = shutil.copytree(reference, tmp_path / "copy")
    assert differences(reference, copy) == []
    lines = metrics(copy)
    lines[3]["grad_norm"] *= 1 + 1e-15
    (copy / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shutil.rmtree(copy / "checkpoints" / "120")
    differing_items = differences(reference, copy)
    assert "metrics.jsonl" in differing_items
    assert "step" in differing_items
    assert len(differing_items) > 20, "weights and moments differ at step 110"


def test_the_table_counts_outcomes():
    results = [("a", SAME), ("a", OTHER), ("b", STOPPED), ("c", SKIPPED)]
    rows = table([Outcome(row, result, "") for row, result in results]).splitlines()
    assert rows[2:] == ["| a | 2 | 1 | 0 | 1 |", "| b | 1 | 0 | 1 | 0 |", "| c | skipped | | | |"]
