"""Verbs of the registry tool that inspect run folders."""

import argparse
import contextlib
import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING

from layers.errors import UsageError
from registry.tool import render_runs
from registry.tool.requests import names, printed

if TYPE_CHECKING:
    from registry.runs.run import Run

# Like `list`, `runs` imports no jax: what needs it is imported in the functions that it runs.


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Pauses Python's cyclic garbage collector, which would traverse all records again and again: half of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@_without_collector()
def runs(options: argparse.Namespace) -> int:
    """Lists run folders: state, metrics, and the knobs that differ; --where, --sort and --group."""
    from registry.runs import table
    from registry.runs.run import read

    found = read(names(options, 0, None, "patterns"))
    broken = [run for run in found if run.problem is not None]
    readable = [run for run in found if run.problem is None]
    known, everything = table.names(readable), readable
    if options.where:
        readable, broken = table.where(readable, options.where, known), []
    if options.sort:
        readable = table.ordered(readable, options.sort, known)
    knobs = table.varied(readable)
    if options.group:
        by = options.group.split(",")
        table.groups(everything, by)  # errors of names, also if no run is left
        rows = [table.group_row(group, knobs, by) for group in table.groups(readable, by)]
        printed(options, rows, render_runs.groups)
    else:
        rows = [table.row(run, knobs) for run in (*readable, *broken)]
        printed(options, rows, render_runs.runs)
    return 0 if rows else 1


def compare(options: argparse.Namespace) -> int:
    """Shows what differs among runs, and their results at equal steps, tokens, FLOPs and seconds."""
    from registry.runs import comparison
    from registry.runs.run import read

    found = read(names(options, 1, None, "two or more run folders"))
    if len(found) < 2:
        raise UsageError(f"compare takes two or more run folders (got {found[0].name}). Give another one.")
    compared = comparison.compare(found, options.metric)
    printed(options, compared, render_runs.comparison)
    return 0 if comparison.is_equal(compared) else 1


def lineage(options: argparse.Namespace) -> int:
    """Shows the runs and files that the weights of a run come from."""
    from registry.runs.lineage import lineage

    return printed(options, lineage(_one(options)), render_runs.lineage)


def rerun(options: argparse.Namespace) -> int:
    """Prints the commands that repeat a run, and what is not as it was; exit code 1 if anything is."""
    from registry.runs.rerun import rerun

    found = rerun(_one(options), options.imports)
    printed(options, found, render_runs.rerun)
    return 1 if found["missing"] else 0


def _one(options: argparse.Namespace) -> "Run":
    from registry.runs.run import Run
    from tasks.storage.files import place

    (name,) = names(options, 1, 1, "one run folder")
    return Run(place(name))
