"""Tables of runs: the knobs that differ, conditions, orders, and groups of runs that differ in nothing else."""

import collections
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
    """Returns the knobs, and the config fields set by overrides, whose values differ among runs, in their order."""
    return list(differing([run.settings for run in runs]))


def names(runs: Iterable[Run]) -> list[str]:
    """Returns the names that conditions and orders may use."""
    found = dict.fromkeys(FIGURES)
    for run in runs:
        found |= dict.fromkeys(name for name in run.summary.validation if name not in ("split", "step"))
        found |= dict.fromkeys((*run.summary.evals, *run.settings))
    return list(found)


def where(runs: Sequence[Run], expression: str, known: Collection[str]) -> list[Run]:
    """Returns the runs for which a condition on known names holds, such as `BATCH_SIZE==16 and loss<2`.

    Raises:
      UsageError: it is not a condition, or names neither a knob nor a figure.
    """
    return [run for run in runs if holds(expression, run.__getitem__, known, example=EXAMPLE)]


def ordered(runs: Sequence[Run], by: str, known: Collection[str]) -> list[Run]:
    """Returns the runs in the order of a figure or setting, with `-` from the highest; runs without it are last.

    Args:
      runs: the runs.
      by: the name.
      known: the names of all runs.

    Raises:
      UsageError: the name is not known.
    """
    name = by.removeprefix("-")
    if name not in known:
        raise UsageError(f"Unknown name '{name}' in --sort. {did_you_mean(name, known)}")
    have = [run for run in runs if run[name] is not None]
    numbers = all(isinstance(run[name], int | float) for run in have)
    have.sort(key=lambda run: run[name] if numbers else str(run[name]), reverse=by.startswith("-"))
    return have + [run for run in runs if run[name] is None]


def row(run: Run, knobs: Iterable[str]) -> Row:
    """Returns the figures of a run, its last scalars of validation and tasks, and some settings, as JSON values."""
    if run.problem is not None:
        return {"run": run.name, "state": run.state, "problem": run.problem}
    return {
        **{name: figure(run) for name, figure in FIGURES.items()},
        "smoke": bool(run.record.get("smoke")),
        "validation": {name: scalar for name, scalar in run.summary.validation.items() if name != "split"},
        "evals": dict(run.summary.evals),
        "knobs": {name: run[name] for name in knobs if name in run.settings},
    }


def groups(runs: Sequence[Run], by: Sequence[str]) -> list[list[Run]]:
    """Returns the runs in groups that are equal apart from the settings in `by`: experiment, knobs, overridden config
    fields, fingerprints of data and digests of code.

    Raises:
      UsageError: no run has a setting in `by`.
    """
    known = {name: None for run in runs for name in run.settings}
    for name in by if runs else ():
        if name not in known:
            raise UsageError(f"Unknown knob '{name}' in --group. {did_you_mean(name, known)}")
    found: dict[Any, list[Run]] = {}
    for run in runs:
        rest = tuple(item for item in sorted(run.settings.items()) if item[0] not in by)
        found.setdefault((run.entry, rest, run.made_of), []).append(run)
    return list(found.values())


def per_setting(runs: Sequence[Run], values: Sequence[float | None], by: Collection[str]) -> list[float]:
    """Returns one value for each distinct choice of the settings in `by`: the mean of its runs.

    Two runs of one seed are not two samples.
    """
    found: dict[Any, list[float]] = {}
    for run, value in zip(runs, values, strict=True):
        if value is not None:
            found.setdefault(tuple(run.settings.get(name) for name in sorted(by)), []).append(value)
    return [math.fsum(each) / len(each) for each in found.values()]


def group_row(runs: Sequence[Run], settings: Collection[str], by: Collection[str]) -> Row:
    """Returns mean, standard deviation and count of the figures of a group, and the settings that vary among groups."""
    first = runs[0]
    known = {name: per_setting(runs, [run[name] for run in runs], by) for name in MEANS}
    states = collections.Counter(run.state for run in runs)
    return {
        "entry": first.record["experiment"],
        "smoke": bool(first.record.get("smoke")),
        "n": len({tuple(run.settings.get(name) for name in by) for run in runs}),
        "runs": [run.name for run in runs],
        "states": dict(states),
        "code": list(dict.fromkeys(run.code for run in runs)),
        **{name: statistics(numbers) for name, numbers in known.items() if numbers},
        "knobs": {name: first[name] for name in settings if name in first.settings and name not in by},
    }


def statistics(numbers: Sequence[float]) -> Row:
    """Returns mean, deviation (of the sample, n - 1; None for one value) and n of one or more numbers."""
    mean = math.fsum(numbers) / len(numbers)
    spread = math.fsum((value - mean) ** 2 for value in numbers)
    deviation = math.sqrt(spread / (len(numbers) - 1)) if len(numbers) > 1 else None
    return {"mean": mean, "deviation": deviation, "n": len(numbers)}
