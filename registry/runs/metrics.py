"""Metrics of a run: its last and best lines, and curves over steps, tokens, FLOPs and seconds."""

import bisect
import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from registry.runs.folders import METRICS
from tasks.storage.files import Place, reached

_LOSS = re.compile(r'"loss": ([-+.\deE]+)')  # in a line as it is written

Line = dict[str, Any]  # "step", "split" and scalars

TRAIN, VALIDATION, EVALS = "train", "validation", "evals"  # splits of lines; scalars of evals are named TASK/METRIC
AXES = {"step": "step", "tokens": "tokens_seen", "flops": "flops", "seconds": "seconds"}  # axis: scalar of train lines
HIGHER = ("accuracy", "acc", "acc_norm", "exact_match", "f1", "bleu", "rouge")  # metrics of which more is better


def text_of(folder: Place) -> str:
    """Returns the text of metrics.jsonl; empty if there is none."""
    file = folder / METRICS
    with reached(file, "read"):
        return file.read_bytes().decode(errors="replace") if file.exists() else ""


def lines_of(text: str) -> list[Line]:
    """Returns all lines in the order of their steps, without those that a crash has truncated."""
    return [line for line in map(_parsed, text.splitlines()) if line is not None]


def _parsed(text: str) -> Line | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) and {"step", "split"} <= line.keys() else None


@dataclasses.dataclass(frozen=True)
class Summary:
    """What a table of runs shows of metrics."""

    train: Line  # the last line of training; empty if there is none
    validation: Line  # the last line of validation; empty if there is none
    best: Line  # the line of validation with the lowest loss; empty if there is none

    @property
    def step(self) -> int:
        """The last step with a line."""
        return max((line["step"] for line in (self.train, self.validation) if line), default=0)


def summary(text: str) -> Summary:
    """Returns the summary of the text of metrics.jsonl; most lines of training are not parsed."""
    lines = text.splitlines()
    last = next((line for line in map(_parsed, reversed(lines)) if line and line["split"] == TRAIN), {})
    validation = [line for line in lines if f'"split": "{VALIDATION}"' in line]
    newest = next((line for line in map(_parsed, reversed(validation)) if line), {})
    measured = [(float(match[1]), line) for line in validation if (match := _LOSS.search(line)) and line.endswith("}")]
    best = min(measured, key=lambda pair: pair[0], default=(0.0, ""))[1]
    return Summary(last, newest, _parsed(best) or {})


def with_seconds(lines: Iterable[Line]) -> list[Line]:
    """Returns the lines with "seconds": the training time up to each, without evaluation, saving and compilation.

    It is the sum over the lines of training of their updates / `steps_per_second`. Other lines have the time of the
    last line of training before them.
    """
    made, seconds, before = [], 0.0, 0
    for line in lines:
        if line["split"] == TRAIN:
            rate = line.get("steps_per_second")
            seconds += max(line["step"] - before, 0) / rate if rate else 0.0
            before = line["step"]
        made.append({**line, "seconds": seconds})
    return made


@dataclasses.dataclass(frozen=True)
class Curve:
    """A metric over an axis: equally long sequences, `x` rising."""

    x: Sequence[float]
    y: Sequence[float]

    def at(self, x: float) -> float | None:
        """Returns the value at `x`, linear between the two nearest points; None outside the curve."""
        if not self.x or not self.x[0] <= x <= self.x[-1]:
            return None
        right = bisect.bisect_left(self.x, x)
        if self.x[right] == x:
            return self.y[right]
        share = (x - self.x[right - 1]) / (self.x[right] - self.x[right - 1])
        return self.y[right - 1] + share * (self.y[right] - self.y[right - 1])

    def best(self, *, higher: bool = False) -> tuple[float, float]:
        """Returns the x and y of the lowest value, or of the highest."""
        choose = max if higher else min
        return choose(zip(self.x, self.y, strict=True), key=lambda point: point[1])


def curve(lines: Sequence[Mapping[str, Any]], metric: str, *, split: str = VALIDATION, axis: str = "step") -> Curve:
    """Returns a metric of a split over an axis.

    Args:
      lines: lines in the order of their steps, made by `with_seconds` if the axis is "seconds".
      metric: name of the scalar.
      split: the split of the lines.
      axis: a name in AXES. Lines without its scalar (validation has no count of tokens) are placed between the two
        nearest lines of training, in proportion to their steps.
    """
    places = _places(lines, AXES[axis])
    points = [(places(line), line[metric]) for line in lines if line["split"] == split and line.get(metric) is not None]
    rising: dict[float, float] = {x: y for x, y in points if x is not None}
    return Curve(tuple(rising), tuple(rising.values()))


def _places(lines: Sequence[Mapping[str, Any]], scalar: str) -> Callable[[Mapping[str, Any]], float | None]:
    """Returns a function from a line to its place on the axis of a scalar; None where it is unknown."""
    if scalar == "step":
        return lambda line: line["step"]
    known = {line["step"]: line[scalar] for line in lines if line["split"] == TRAIN and line.get(scalar) is not None}
    axis = Curve((0, *known), (0.0, *known.values())) if known else Curve((), ())
    return lambda line: axis.at(line["step"])


def higher_is_better(metric: str) -> bool:
    """Returns whether more of a metric is better: accuracies and their like, also of tasks (`arc_easy/acc`)."""
    return metric.rpartition("/")[2].partition(",")[0] in HIGHER
