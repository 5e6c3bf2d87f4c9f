"""Measured failure recovery: after faults and restarts, a run must be bit-identical to a run without faults.

Small experiments of six kinds are trained in real processes, once without faults per number of processes. Other runs
are killed, signalled, paused, lose disk space or their object store, have checkpoints corrupted or clocks moved, and
are restarted with the same command until they finish. Weights, optimizer state, data positions and metrics.jsonl
(except timings) are compared bit by bit.

python -m benchmarks.faults [--only=kill] [--run=dense] [--seed=0] [--counts=full]
"""

import argparse
import logging
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # this process only reads checkpoints

from registry.records.provenance import code
from testing.faults.bench import OTHER, SAME, SKIPPED, STOPPED, Bench, Outcome
from testing.faults.runs import RUNS
from testing.faults.scenarios import FAULTS


def run_scenarios(bench: Bench, faults: Sequence[str]) -> list[Outcome]:
    """Disturbs one kind of run by some faults; prints each outcome at once and returns all."""
    outcomes = []
    for name in faults:
        for outcome in FAULTS[name](bench):
            print(f"{outcome.result}: {bench.run.title}: {outcome.row}: {outcome.detail}", flush=True)
            outcomes.append(outcome)
    return outcomes


def table(outcomes: Sequence[Outcome]) -> str:
    """Returns a Markdown table with a row per fault: trials / OTHER of each kind of run, and totals of each outcome."""
    runs = [name for name in RUNS if any(outcome.run == name for outcome in outcomes)]
    heads = ["fault", *(RUNS[name].title for name in runs), "trials", SAME, STOPPED, OTHER]
    lines = [f"| {' | '.join(heads)} |", f"| --- |{' ---: |' * (len(heads) - 1)}"]
    for row in dict.fromkeys(outcome.row for outcome in outcomes):
        lines.append(_line(row, [outcome for outcome in outcomes if outcome.row == row], runs))
    return "\n".join([*lines, _line("all", outcomes, runs)])


def _line(row: str, outcomes: Sequence[Outcome], runs: Sequence[str]) -> str:
    cells = []
    for name in runs:
        results = [outcome.result for outcome in outcomes if outcome.run == name]
        count, other = len(results) - results.count(SKIPPED), results.count(OTHER)
        cells.append(f"{count} / {other}" if count else "skipped" if results else "")
    results = [outcome.result for outcome in outcomes if outcome.result != SKIPPED]
    totals = [len(results), *(results.count(result) for result in (SAME, STOPPED, OTHER))]
    return f"| {row} | {' | '.join([*cells, *map(str, totals)])} |"


def _version() -> str:
    """Returns a sentence with the commit that was measured."""
    version = code()["vortaro"]
    changes = ", with changes that are not committed" if version["dirty"] else ""
    return f"Commit: {version['commit'] or 'unknown'}{changes}."


def main() -> int:
    """Prints the outcome of each fault, and a table; returns exit code 1 if an outcome is OTHER."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=FAULTS, action="append", help="a kind of fault; repeatable")
    parser.add_argument("--run", choices=RUNS, action="append", help="a kind of run; repeatable")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--counts", choices=("small", "full"), default="full")
    options = parser.parse_args()
    began, outcomes, waits = time.monotonic(), list[Outcome](), [0.0]
    for name in ("absl", "gcp_storage_emulator"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # long warnings, and files that do not exist yet
    for run in options.run or RUNS:
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(Path(folder), RUNS[run], options.seed, small=options.counts == "small")
            outcomes += run_scenarios(bench, options.only or list(FAULTS))
            waits.append(bench.longest_wait)
    print(f"\n{_version()} Seed: {options.seed}.\n\n{table(outcomes)}\n")
    print(f"Total minutes: {(time.monotonic() - began) / 60:.0f}.")
    print(f"Longest time from a kill until the last process exited: {max(waits):.0f} s.", flush=True)
    return 1 if any(outcome.result == OTHER for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
