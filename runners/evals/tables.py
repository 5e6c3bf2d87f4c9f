"""Results of evaluation tasks as a table and as a line."""

from collections.abc import Mapping

from registry.tool import render

Scalars = Mapping[str, Mapping[str, float]]
COLUMNS = ("task", "metric", "value", "stderr", "documents")
NUMBERS = ("value", "stderr", "documents")
STDERR = "_stderr"


def rows(scalars: Scalars) -> list[tuple[str, str, str, str, str]]:
    """Returns the cells of each metric; a standard error is in the row of its metric."""
    found = []
    for task, values in scalars.items():
        documents = values.get(f"{task}/samples")
        for name, value in values.items():
            metric, _, chosen = name.removeprefix(f"{task}/").partition(",")
            if metric == "samples" or metric.endswith(STDERR):
                continue
            error = values.get(f"{task}/{metric}{STDERR}{',' if chosen else ''}{chosen}")
            label = f"{metric} ({chosen})" if chosen else metric
            cells = (f"{value:.4f}", "" if error is None else f"{error:.4f}")
            found.append((task, label, *cells, "" if documents is None else f"{documents:,.0f}"))
    return found


def print_table(scalars: Scalars) -> None:
    """Prints the results as a table."""
    render.console().print(render.table(COLUMNS, rows(scalars), right=NUMBERS))


def line(scalars: Scalars) -> str:
    """Returns the results in one line, without standard errors."""
    return "  ".join(f"{task}/{metric} {value}" for task, metric, value, *_ in rows(scalars))
