"""Tables of runs: the knobs that differ, conditions, orders, and groups of runs that differ in nothing else."""

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from layers.errors import UsageError, did_you_mean
from registry.records.conditions import holds
from registry.records.diff import differing
from registry.runs.run import FIGURES, Run

Row = dict[str, Any]
MEANS = ("loss", "bits_per_byte", "best_loss", "train_loss", "tokens", "seconds", "step")  # figures of groups
EXAMPLE = "BATCH_SIZE==16 and loss<2"


def varied(runs: Sequence[Run]) -> list[str]:
    """Returns the knobs whose values differ among runs, in their order."""
    return list(differing([run.knobs for run in runs]))


def names(runs: Iterable[Run]) -> list[str]:
    """Returns the names that conditions and orders may use."""
    found = dict.fromkeys(FIGURES)
    for run in runs:
        found |= dict.fromkeys(name for name in run.summary.validation if name not in ("split", "step"))
        found |= dict.fromkeys(run.knobs)
    return list(found)


def where(runs: Sequence[Run], expression: str) -> list[Run]:
    """Returns the runs for which a condition holds, such as `BATCH_SIZE==16 and loss<2`.

    Raises:
      UsageError: it is not a condition, or names neither a knob nor a figure.
    """
    known = names(runs)
    return [run for run in runs if holds(expression, run.__getitem__, known, example=EXAMPLE)]


def ordered(runs: Sequence[Run], by: str) -> list[Run]:
    """Returns the runs in the order of a figure or knob, with `-` from the highest; runs without it are last.

    Raises:
      UsageError: no run has it.
    """
    name = by.removeprefix("-")
    if name not in (known := names(runs)):
        raise UsageError(f"Unknown name '{name}' in --sort. {did_you_mean(name, known)}")
    have = [run for run in runs if run[name] is not None]
    numbers = all(isinstance(run[name], int | float) for run in have)
    have.sort(key=lambda run: run[name] if numbers else str(run[name]), reverse=by.startswith("-"))
    return have + [run for run in runs if run[name] is None]


def row(run: Run, knobs: Iterable[str]) -> Row:
    """Returns the figures of a run, its last scalars of validation, and some of its knobs, as JSON values."""
    if run.problem is not None:
        return {"run": run.name, "state": run.state, "problem": run.problem}
    return {
        **{name: figure(run) for name, figure in FIGURES.items()},
        "smoke": bool(run.record.get("smoke")),
        "validation": {name: scalar for name, scalar in run.summary.validation.items() if name != "split"},
        "knobs": {name: run[name] for name in knobs if name in run.knobs},
    }


def groups(runs: Sequence[Run], by: Sequence[str]) -> list[list[Run]]:
    """Returns the runs in groups of one experiment, whose knobs are equal apart from those in `by`.

    Raises:
      UsageError: no run has a knob in `by`.
    """
    known = {name: None for run in runs for name in run.knobs}
    for name in by:
        if name not in known:
            raise UsageError(f"Unknown knob '{name}' in --group. {did_you_mean(name, known)}")
    found: dict[Any, list[Run]] = {}
    for run in runs:
        rest = tuple(item for item in sorted(run.knobs.items()) if item[0] not in by)
        found.setdefault((run.entry, rest), []).append(run)
    return list(found.values())


def group_row(runs: Sequence[Run], knobs: Collection[str], by: Collection[str]) -> Row:
    """Returns mean, standard deviation and count of the figures of a group, and the knobs that vary among groups."""
    first = runs[0]
    known = {name: [run[name] for run in runs if run[name] is not None] for name in MEANS}
    return {
        "entry": first.record["experiment"],
        "smoke": bool(first.record.get("smoke")),
        "n": len(runs),
        "runs": [run.name for run in runs],
        **{name: statistics(numbers) for name, numbers in known.items() if numbers},
        "knobs": {name: first[name] for name in knobs if name in first.knobs and name not in by},
    }


def statistics(numbers: Sequence[float]) -> Row:
    """Returns mean, deviation (of the sample, n - 1; None for one value) and n of one or more numbers."""
    mean = math.fsum(numbers) / len(numbers)
    spread = math.fsum((value - mean) ** 2 for value in numbers)
    deviation = math.sqrt(spread / (len(numbers) - 1)) if len(numbers) > 1 else None
    return {"mean": mean, "deviation": deviation, "n": len(numbers)}
