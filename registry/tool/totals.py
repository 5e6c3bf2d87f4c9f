"""Totals of experiments, parameters and bytes, without importing jax for Vortaro's own.

registry/totals.json holds those of Vortaro's own experiments: {name: totals}. `python -m registry golden --update`
writes it with the golden files, and a test compares the two. Totals of other experiments are computed on request.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

from registry import index

Totals = dict[str, int]  # "parameters", "bytes" and so on: registry.records.snapshot.weight_summary

FILE = Path(__file__).parents[1] / "totals.json"


class TotalsByName:
    """Totals of experiments, from totals.json or computed by this process.

    Args:
      compute: returns the totals of an experiment; may take a quarter of a second.
      is_registered: reads totals.json. False for experiments changed by --set or --smoke.
    """

    def __init__(self, compute: Callable[[str], Totals], *, is_registered: bool = True):
        self._compute = compute
        self._totals = stored() if is_registered else {}
        self._has_computed = False

    def known(self, name: str) -> Totals | None:
        """Returns the totals of an experiment; None if they are not computed yet."""
        return self._totals.get(name)

    def of(self, name: str) -> Totals:
        """Returns the totals of an experiment, computing them if needed."""
        if name not in self._totals:
            if not self._has_computed and sys.stderr.isatty():
                print("Computing totals ...", file=sys.stderr, flush=True)
            self._has_computed = True
            self._totals[name] = self._compute(name)
        return self._totals[name]


def stored() -> dict[str, Totals]:
    """Returns the content of totals.json; empty if it is missing."""
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def store(name: str, totals: Totals) -> None:
    """Writes the totals of one of Vortaro's own experiments, and removes those of experiments that no longer exist."""
    from tasks.storage.files import write_whole  # needs libraries that `list` does without

    entries = index.entries()
    by_name = {**stored(), name: totals}
    own = {
        key: by_name[key] for key in sorted(by_name) if key in entries and entries[key].module.startswith("registry.")
    }
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in own.items())
    write_whole(FILE, f"{{\n{lines}\n}}\n")
