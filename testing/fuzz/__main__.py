"""Reads mutated inputs of all kinds; a result other than success or a one-sentence error is reported with its number.

python -m testing.fuzz [--kind=NAME ...] [--mutations=10000] [--seed=0]
python -m testing.fuzz --kind=NAME --seed=0 --example=NUMBER   # repeats one example
"""

import argparse
import collections
import importlib.util
import os
import sys
import time
from collections.abc import Sequence

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import rich.console
import rich.table

from layers.errors import missing_package
from testing.fuzz.examples import ACCEPTED, OTHER, REFUSED, Outcome
from testing.fuzz.names import NAMES, NEED_TORCH
from testing.fuzz.worker import supervise

COLUMNS = ("kind", "mutations", "accepted", "refused by a sentence", "other", "seconds")


def fuzz(name: str, options: argparse.Namespace) -> tuple[collections.Counter[str], float]:
    """Reads the examples of a kind; prints the first at each place of the code that is OTHER.

    Returns:
      the number of each result, and the seconds.
    """
    began, results, seen = time.monotonic(), collections.Counter[str](), collections.Counter[str]()

    def report(outcome: Outcome) -> None:
        results[outcome.result] += 1
        seen[outcome.place] += outcome.result == OTHER
        if (outcome.result == OTHER and (not outcome.place or seen[outcome.place] == 1)) or options.example is not None:
            flags = f"--kind={name} --seed={options.seed} --example={outcome.number}"
            print(f"{outcome.result}: {flags}: {outcome.place} {outcome.detail!a}", flush=True)

    numbers = range(options.mutations) if options.example is None else range(options.example, options.example + 1)
    supervise(name, options.mutations, options.seed, report, numbers)
    return results, time.monotonic() - began


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a table of results by kind; returns exit code 1 if one is OTHER."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=NAMES, action="append", help="a kind of input; repeatable (default: all)")
    parser.add_argument("--mutations", type=int, default=10_000, help="examples of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--example", type=int, help="number of one example to read")
    options = parser.parse_args(arguments)
    kinds = options.kind or NAMES
    without = [kind for kind in kinds if kind in NEED_TORCH and importlib.util.find_spec("torch") is None]
    if without:
        parser.error(str(missing_package(f"--kind={without[0]}", "torch", "torch")))
    table = rich.table.Table(*COLUMNS)
    for column in table.columns[1:]:
        column.justify = "right"
    failures = 0
    for name in kinds:
        results, seconds = fuzz(name, options)
        failures += results[OTHER]
        counts = (results.total(), results[ACCEPTED], results[REFUSED], results[OTHER])
        table.add_row(name, *(f"{count:,}" for count in counts), f"{seconds:.0f}")
    rich.console.Console().print(table)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
