"""The state of a run: whether a process trains in its folder, and how the last one ended."""

import contextlib
import datetime
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from registry.records.record import EXPERIMENT
from registry.runs.folders import CHECKPOINTS, LOCK, METRICS
from tasks.storage.files import Place, file_system
from tasks.storage.lease import DEAD_SECONDS, holder_of
from tasks.storage.lease import FOLDER as LEASE
from tasks.storage.locks import is_locked

RUNNING = "running"  # a process trains in the folder
FINISHED = "finished"  # it has trained to its last step
STOPPED = "stopped"  # a signal stopped it, and its last step is saved
DEAD = "dead"  # it ended otherwise; updates after its last checkpoint are lost
NEW = "new"  # it has not started: imported weights, or a record alone
BROKEN = "broken"  # its record is missing or cannot be read
STATES = (RUNNING, FINISHED, STOPPED, DEAD, NEW, BROKEN)

ASSUMED_SECONDS = 600.0
CLOCKS_APART = 60.0  # seconds by which the clocks of a store and of this machine may differ


def state_of(folder: Place, record: Mapping[str, Any], *, step: Callable[[], int], steps: int | None) -> str:
    """Returns the state of a run with a readable record.

    On a file system without locks, a run whose last start has no end is taken for running if its metrics have changed
    within ASSUMED_SECONDS.

    Args:
      folder: the run folder.
      record: its experiment.json.
      step: returns the last step in its metrics; only called for records of earlier versions.
      steps: the step at which training ends.
    """
    starts, in_use = record.get("starts") or [], is_in_use(folder)
    if in_use is None and starts and not starts[-1].get("ended"):
        in_use = time.time() - (last_change(folder) or 0.0) < ASSUMED_SECONDS
    if in_use:
        return RUNNING
    if not starts:
        return NEW
    if "ended" in starts[-1]:  # records of earlier versions lack the end of a start
        ended = starts[-1]["ended"]
        return DEAD if ended is None else FINISHED if ended["reason"] == FINISHED else STOPPED
    saved = last_saved(folder)
    if saved is not None and steps is not None and saved >= steps:
        return FINISHED
    return STOPPED if saved is not None and saved >= step() else DEAD


def has_finished(folder: Place) -> bool:
    """Returns whether the last start of a run has recorded that the run is complete; False if it cannot be read."""
    with contextlib.suppress(Exception):  # of any store, or an incomplete record
        record = json.loads((folder / EXPERIMENT).read_text())
        return record["starts"][-1]["ended"]["reason"] == FINISHED
    return False


def is_in_use(folder: Place) -> bool | None:
    """Returns whether a process trains in the folder: it holds the lock, or on a store has renewed its lease.

    None on a file system without locks.
    """
    return is_locked(folder / LOCK) if isinstance(folder, Path) else _is_leased(folder)


def _is_leased(folder: Place) -> bool:
    with contextlib.suppress(FileNotFoundError):
        system, root = file_system(folder / LEASE)
        name = max(system.ls(root, detail=False), default=None)
        if name is None or holder_of(system.cat_file(name), name)["released"]:
            return False
        renewed: datetime.datetime = system.modified(name)
        return time.time() - renewed.timestamp() < DEAD_SECONDS + CLOCKS_APART
    return False


def last_saved(folder: Place) -> int | None:
    """Returns the step of the last complete checkpoint; None without one."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return max((int(path.name) for path in (folder / CHECKPOINTS).iterdir() if path.name.isdigit()), default=None)
    return None


def seconds_of(folder: Place, record: Mapping[str, Any], *, now: float, is_running: bool) -> float | None:
    """Returns the time in seconds that processes have trained, over all starts; None if it is unknown.

    The last start lasts until now if the run is running, and without a recorded end it lasted until the last change of
    its metrics. Starts of earlier versions have no end: the time is unknown if another start follows.
    """
    starts = record.get("starts") or []
    begins = [datetime.datetime.fromisoformat(start["started"]).timestamp() for start in starts]
    changed = last_change(folder)
    total = 0.0
    for number, (start, begun) in enumerate(zip(starts, begins, strict=True)):
        if (start.get("ended") or {}).get("at"):
            end = datetime.datetime.fromisoformat(start["ended"]["at"]).timestamp()
        elif number + 1 < len(starts):
            return None
        else:
            end = now if is_running else changed
        if end is None:
            return None
        total += max(end - begun, 0.0)
    return total if starts else None


def last_change(folder: Place) -> float | None:
    """Returns the time at which metrics were last written, in seconds since 1970; None if there are none."""
    file = folder / METRICS
    try:
        if isinstance(file, Path):
            return file.stat().st_mtime
        system, path = file_system(file)
        return system.modified(path).timestamp()
    except (FileNotFoundError, NotImplementedError):
        return None
