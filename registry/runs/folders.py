"""Run folders: their files, and the search for them on disks and object stores."""

import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from layers.errors import UsageError
from registry.records.record import EXPERIMENT
from tasks.storage.files import Place, file_system, is_remote, place, reached

METRICS = "metrics.jsonl"  # scalars, a line for each report
TIMES = "times.jsonl"  # the time of each start and report, of all processes that have trained in the folder
CHECKPOINTS = "checkpoints"  # a folder for each saved step
NON_FINITE = "non_finite.json"  # why the last update was not finite
LOCK = ".lock"  # locked while a process trains in a local folder

SEARCHED = "runs"  # where runs are searched without a pattern
DEPTH = 3  # levels of folders below a folder in which runs are searched


def find(patterns: Iterable[str]) -> list[Place]:
    """Returns the run folders that match, in the order of their names, each once.

    Args:
      patterns: names of run folders or of folders that contain some, local, gs:// or s3://, with `*`, `?` and `[...]`.
        Without any, the runs below `runs` are found.

    Returns:
      folders with a record, and folders that have lost or not yet written theirs but have metrics or checkpoints.

    Raises:
      UsageError: no run folder matches a pattern.
    """
    found: dict[str, Place] = {}
    for pattern in list(patterns) or [SEARCHED]:
        folders = list(_runs(pattern))
        if not folders:
            raise UsageError(f"No run folder matches '{pattern}' (none has {EXPERIMENT}). Give the --workdir of a run.")
        found |= {os.path.normpath(folder) if isinstance(folder, Path) else str(folder): folder for folder in folders}
    return list(found.values())


def _runs(pattern: str) -> Iterator[Place]:
    for name in sorted(_matching(pattern)):
        folder = place(name)
        if _is_run(folder):
            yield folder
        else:
            yield from _below(folder, DEPTH)


def _matching(pattern: str) -> list[str]:
    """Returns the names of folders that match, of which some may not be folders of runs."""
    if not glob.has_magic(pattern) or place(pattern).exists():  # a name may have brackets
        return [pattern]
    if not is_remote(pattern):
        return glob.glob(pattern)
    with reached(pattern, "listed"):
        system, path = file_system(pattern)
        scheme = pattern.partition("://")[0]
        return [f"{scheme}://{name}" for name in system.glob(path)]


def _is_run(folder: Place) -> bool:
    return any((folder / name).exists() for name in (EXPERIMENT, METRICS, CHECKPOINTS))


def _below(folder: Place, depth: int) -> Iterator[Place]:
    """Yields the runs in a folder and its folders, by name; runs contain no other runs."""
    if is_remote(folder):
        yield from _listed(folder, depth)
        return
    if depth == 0 or not folder.is_dir():
        return
    with reached(folder, "listed"):
        inside = sorted(child for child in folder.iterdir() if not child.name.startswith("."))
    for child in inside:
        if child.is_dir():
            if _is_run(child):
                yield child
            else:
                yield from _below(child, depth - 1)


def _listed(folder: Place, depth: int) -> Iterator[Place]:
    """Yields the runs below a folder on a store, with few requests."""
    scheme = str(folder).partition("://")[0]
    with reached(folder, "listed"):
        system, path = file_system(folder)
        below = [f"{path}{'/*' * level}/{name}" for level in range(1, depth + 1) for name in (EXPERIMENT, METRICS)]
        names = {name.rpartition("/")[0] for pattern in below for name in system.glob(pattern)}
    yield from (place(f"{scheme}://{name}") for name in sorted(names))
