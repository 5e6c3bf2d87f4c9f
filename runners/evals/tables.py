"""Results of evaluation tasks on a terminal: a table, and a line."""

from registry.runs_pages.task_results import COLUMNS, NUMBERS, Scalars, rows
from registry.tool import render


def print_table(scalars: Scalars) -> None:
    """Prints the results as a table."""
    render.console().print(render.table(COLUMNS, rows(scalars), right=NUMBERS))


def line(scalars: Scalars) -> str:
    """Returns the results in one line, without standard errors."""
    return "  ".join(f"{task}/{metric} {value}" for task, metric, value, *_ in rows(scalars))
