"""Goodput: the share of the wall clock of a run in which updates were computed that the run has kept."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any, TypedDict

from registry.records.quantities import duration
from registry.runs.folders import TIMES
from tasks.storage.files import Place, reached
from tasks.storage.json_values import Count, require_type
from tasks.storage.jsonl import read_lines

Line = dict[str, Any]  # of times.jsonl: "time" in seconds since 1970, "step", and "starts" or "updates" (seconds)


class _Moment(TypedDict):
    time: float
    step: Count


class _Time(_Moment, total=False):
    starts: bool
    updates: float


@dataclasses.dataclass(frozen=True)
class Goodput:
    """The seconds from the first start of a run to its last record, by what was done in them."""

    useful: float = 0.0  # updates that the run has kept
    repeated: float = 0.0  # updates that were lost with a process and computed again
    overhead: float = 0.0  # start, compilation, evaluation, saving: a process ran, and no update
    idle: float = 0.0  # from the last record of a process to the next start

    @property
    def lost(self) -> float:
        """Seconds in which a process ran without an update that the run has kept."""
        return self.repeated + self.overhead

    @property
    def wall(self) -> float:
        """All seconds."""
        return self.useful + self.lost + self.idle

    @property
    def share(self) -> float | None:
        """Useful seconds over all; None for a run of no time."""
        return self.useful / self.wall if self.wall else None

    def parts(self) -> list[tuple[str, str, str]]:
        """Returns the name, time and share of each kind of seconds."""
        kinds = {"kept updates": self.useful, "repeated updates": self.repeated}
        kinds |= {"start, compilation, evaluation, saving": self.overhead, "no process": self.idle}
        return [(name, duration(seconds), f"{seconds / (self.wall or 1):.1%}") for name, seconds in kinds.items()]


def times_of(folder: Place) -> list[Line]:
    """Returns the lines of times.jsonl of a run folder, without damaged ones; earlier versions wrote none."""
    with reached(folder / TIMES, "read"):
        return [line for line in read_lines(folder / TIMES) if _is_time(line)]


def _is_time(line: Line) -> bool:
    try:
        require_type(line, _Time, "the line")
    except ValueError:
        return False
    return True


def goodput(lines: Sequence[Line]) -> Goodput:
    """Returns the seconds of a run by kind.

    Args:
      lines: those of times.jsonl. A start is a line with "starts", at the step that it resumes from; each further line
        of it has the step that is reached, and the seconds of updates since the line before.
    """
    spent = dict.fromkeys(("useful", "repeated", "overhead", "idle"), 0.0)
    resumes = [line["step"] if line.get("starts") else math.inf for line in lines]
    lowest = list(itertools.accumulate(reversed(resumes), min, initial=math.inf))[::-1]  # from each line on
    for number, (before, line) in enumerate(itertools.pairwise(lines)):
        seconds = max(line["time"] - before["time"], 0.0)
        if line.get("starts"):
            spent["idle"] += seconds
            continue
        updates, steps = min(line.get("updates", 0.0), seconds), line["step"] - before["step"]
        kept = lowest[number + 2] - before["step"]
        share = min(max(kept / steps, 0.0), 1.0) if steps > 0 else 1.0
        spent["useful"] += share * updates
        spent["repeated"] += (1 - share) * updates
        spent["overhead"] += seconds - updates
    return Goodput(**spent)
