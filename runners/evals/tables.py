"""Results of evaluation tasks as a table and as a line."""

from collections.abc import Mapping

from registry.tool import render

Scalars = Mapping[str, Mapping[str, float]]
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


def print_table(scalars: Scalars) -> None:
    """Prints the results as a table."""
    render.console().print(render.table(COLUMNS, rows(scalars), right=NUMBERS))


def line(scalars: Scalars) -> str:
    """Returns the results in one line, without standard errors."""
    return "  ".join(f"{task}/{metric} {value}" for task, metric, value, *_ in rows(scalars))
