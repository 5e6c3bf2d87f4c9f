"""Results of evaluation tasks as rows of a table: metrics, each with its standard error and the amounts of its task."""

from collections.abc import Iterable, Mapping
from typing import Any

Scalars = Mapping[str, Mapping[str, float]]  # of each task, by name TASK/METRIC
AMOUNTS = ("documents", "shots")  # scalars that are not results: documents, and solved examples in each prompt
COLUMNS = ("task", "metric", "value", "stderr", *AMOUNTS)
NUMBERS = COLUMNS[2:]
STDERR = "_stderr"


def is_result(name: str) -> bool:
    """Returns whether a scalar TASK/METRIC is a metric, not a standard error or an amount."""
    metric = name.rpartition("/")[2].partition(",")[0]
    return metric not in AMOUNTS and not metric.endswith(STDERR)


def rows(scalars: Scalars) -> list[tuple[str, ...]]:
    """Returns the cells of each metric; a standard error is in the row of its metric."""
    found = []
    for task, values in scalars.items():
        amounts = [values.get(f"{task}/{name}") for name in AMOUNTS]
        for name, value in values.items():
            metric, _, chosen = name.removeprefix(f"{task}/").partition(",")
            if not is_result(name):
                continue
            error = values.get(f"{task}/{metric}{STDERR}{',' if chosen else ''}{chosen}")
            label = f"{metric} ({chosen})" if chosen else metric
            cells = (f"{value:.4f}", "" if error is None else f"{error:.4f}")
            found.append((task, label, *cells, *("" if n is None else f"{n:,.0f}" for n in amounts)))
    return found


def last(lines: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Returns the rows of the last results of each task, with the step in front, from lines of their split."""
    found: dict[str, tuple[int, dict[str, float]]] = {}
    for line in lines:
        scalars = {name: value for name, value in line.items() if "/" in name and value is not None}
        if scalars:
            found[next(iter(scalars)).rpartition("/")[0]] = line["step"], scalars
    return [(str(step), *cells) for task, (step, of) in found.items() for cells in rows({task: of})]
