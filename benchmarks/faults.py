"""Measured failure recovery: after faults and restarts, a run must be bit-identical to a run without faults.

A small experiment is trained in real processes, once without faults per number of processes. Other runs are killed,
signalled, paused, lose disk space or have checkpoints corrupted, and are restarted with the same command until they
finish. Weights, optimizer state, data positions and metrics.jsonl (except timings) are compared bit by bit.

python -m benchmarks.faults [--only=kill] [--seed=0] [--counts=full]
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

from testing.faults.scenarios import KINDS, OTHER, SAME, SKIPPED, STOPPED, Bench, Outcome


def run_scenarios(bench: Bench, kinds: Sequence[str]) -> list[Outcome]:
    """Runs the scenarios of some kinds; prints each outcome at once and returns all."""
    outcomes = []
    for kind in kinds:
        for outcome in KINDS[kind](bench):
            print(f"{outcome.result}: {outcome.row}: {outcome.detail}", flush=True)
            outcomes.append(outcome)
    return outcomes


def table(outcomes: Sequence[Outcome]) -> str:
    """Returns a Markdown table with a row per fault: number of trials, and of each outcome."""
    lines = ["| fault | trials | same bits | clear stop | other |", "| --- | ---: | ---: | ---: | ---: |"]
    for row in dict.fromkeys(outcome.row for outcome in outcomes):
        results = [outcome.result for outcome in outcomes if outcome.row == row]
        if SKIPPED in results:
            lines.append(f"| {row} | skipped | | | |")
            continue
        counts = " | ".join(str(results.count(result)) for result in (SAME, STOPPED, OTHER))
        lines.append(f"| {row} | {len(results)} | {counts} |")
    return "\n".join(lines)


def main() -> int:
    """Prints the outcome of each fault, and a table; returns exit code 1 if an outcome is OTHER."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=KINDS, action="append", help="a kind of fault; repeatable")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--counts", choices=("small", "full"), default="full")
    options = parser.parse_args()
    began = time.monotonic()
    logging.getLogger("absl").setLevel(logging.ERROR)  # Orbax logs long warnings
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), options.seed, small=options.counts == "small")
        outcomes = run_scenarios(bench, options.only or list(KINDS))
    print(f"\n{table(outcomes)}\n\nTotal minutes: {(time.monotonic() - began) / 60:.0f}.", flush=True)
    if bench.longest_wait:
        print(f"Longest time from a kill until the last process exited: {bench.longest_wait:.0f} s.")
    return 1 if any(outcome.result == OTHER for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
