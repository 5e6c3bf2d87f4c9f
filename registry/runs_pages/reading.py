"""A run folder as its page needs it: record, metrics with the training time of each line, samples."""

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from registry.records.record import EXPERIMENT
from tasks.storage.files import Place
from tasks.storage.jsonl import read_lines

METRICS = "metrics.jsonl"
TRAIN = "train"


class Run:
    """A run folder, read when asked for."""

    def __init__(self, folder: Place):
        self.folder, self.name = folder, str(folder)

    @functools.cached_property
    def problem(self) -> str | None:
        """A sentence on why its record cannot be read; None if it can."""
        try:
            assert {"experiment", "knobs", "config", "weights"} <= self.record.keys()
        except (OSError, ValueError, AssertionError, AttributeError) as error:
            return f"'{self.folder / EXPERIMENT}' cannot be read ({error})."
        return None

    @functools.cached_property
    def record(self) -> Mapping[str, Any]:
        """Its experiment.json."""
        return json.loads((self.folder / EXPERIMENT).read_text())

    @functools.cached_property
    def lines(self) -> list[dict[str, Any]]:
        """Its metrics; `seconds` of each is the training time so far, without evaluation, saving and compilation."""
        return with_seconds(read_lines(self.folder / METRICS))

    @property
    def knobs(self) -> dict[str, str]:
        """The text of each knob."""
        return {name: knob["value"] for name, knob in self.record["knobs"].items()}

    @property
    def steps(self) -> int | None:
        """The step at which it ends; None if unknown."""
        text = self.record.get("config", {}).get("train.num_steps", "")
        return int(text) if text.isdecimal() else None

    @property
    def state(self) -> str:
        """Whether it has trained to its last step."""
        last = max((line["step"] for line in self.lines), default=0)
        return "finished" if self.steps is not None and last >= self.steps else "stopped"


def with_seconds(lines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns lines with `seconds`: the sum over the lines of training of their updates / `steps_per_second`."""
    made, seconds, before = [], 0.0, 0
    for line in lines:
        if line["split"] == TRAIN:
            rate = line.get("steps_per_second")
            seconds += max(line["step"] - before, 0) / rate if rate else 0.0
            before = line["step"]
        made.append({**line, "seconds": seconds})
    return made


def differing(knobs: Sequence[Mapping[str, str]]) -> list[str]:
    """Returns the names of knobs whose values differ."""
    names = dict.fromkeys(name for each in knobs for name in each)
    return [name for name in names if len({each.get(name) for each in knobs}) > 1]
