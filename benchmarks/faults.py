"""What does a run survive: disturbed and restarted, it must end in the bits of an undisturbed run.

A small experiment is trained in real processes, undisturbed once for each number of processes; then it is killed, told
to stop, damaged, starved of disk space, halted, and started again with the same command until it ends. Weights,
optimizer, data positions and metrics.jsonl (but for timings) are compared bit for bit.

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


def disturb(bench: Bench, kinds: Sequence[str]) -> list[Outcome]:
    """Carries kinds of disturbances out, and says what came of each as it goes."""
    outcomes = []
    for kind in kinds:
        for outcome in KINDS[kind](bench):
            print(f"{outcome.result}: {outcome.row}: {outcome.detail}", flush=True)
            outcomes.append(outcome)
    return outcomes


def table(outcomes: Sequence[Outcome]) -> str:
    """A row for each disturbance: how often it was tried, and what came of it."""
    lines = ["| disturbance | tried | same bits | clear stop | other |", "| --- | ---: | ---: | ---: | ---: |"]
    for row in dict.fromkeys(outcome.row for outcome in outcomes):
        results = [outcome.result for outcome in outcomes if outcome.row == row]
        if SKIPPED in results:
            lines.append(f"| {row} | skipped | | | |")
            continue
        counts = " | ".join(str(results.count(result)) for result in (SAME, STOPPED, OTHER))
        lines.append(f"| {row} | {len(results)} | {counts} |")
    return "\n".join(lines)


def main() -> int:
    """Prints what came of each disturbance, and a table; exit code 1 where a promise was not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=KINDS, action="append", help="a kind of disturbance; repeatable")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--counts", choices=("small", "full"), default="full")
    options = parser.parse_args()
    began = time.monotonic()
    logging.getLogger("absl").setLevel(logging.ERROR)  # orbax explains itself at length
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), options.seed, small=options.counts == "small")
        outcomes = disturb(bench, options.only or list(KINDS))
    print(f"\n{table(outcomes)}\n\nMinutes in all: {(time.monotonic() - began) / 60:.0f}.", flush=True)
    if bench.longest_wait:
        print(f"Longest wait from a kill until the last process had ended: {bench.longest_wait:.0f} s.")
    return 1 if any(outcome.result == OTHER for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
