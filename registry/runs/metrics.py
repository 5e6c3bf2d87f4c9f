"""Metrics of a run: its last and best lines, and curves over steps, tokens, FLOPs and seconds."""

import bisect
import dataclasses
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypedDict

from registry.runs.folders import METRICS
from tasks.storage.files import Place, reached
from tasks.storage.json_values import Count, parsed, require_type

_STEP = re.compile(rb'"step": (\d+)')  # in a line as it is written
_PHASE = re.compile(rb'"phase": (\d+)')
_LOSS = re.compile(rb'"loss": (-?\d+(?:\.\d+)?(?:e[-+]?\d+)?)')

Line = dict[str, Any]  # "step", "split" and scalars

TRAIN, VALIDATION, EVALS = "train", "validation", "evals"  # splits of lines; scalars of evals are named TASK/METRIC
WEIGHTS = "weights"  # the split of lines with the metrics of each weight: `update_ratio/PATH`
PROCESSES = "processes"  # the split of lines about processes, which have no scalars
AXES = {"step": "step", "tokens": "tokens_seen", "flops": "flops", "seconds": "seconds"}  # axis: scalar of train lines
LOWER = ("loss", "objective", "perplexity", "bits_per_byte", "bits_per_token", "brier_score")  # endings
HIGHER = ("exact_match", "bleu", "rouge", "chrf", "pass@")  # beginnings
HIGHER_NAMES = ("em", "f1", "mcc", "mc1", "mc2")

LARGEST = sys.float_info.max  # of integers, which plots and tables convert to floats


class _Line(TypedDict):
    step: Count
    split: str


def content_of(folder: Place) -> bytes:
    """Returns the content of metrics.jsonl; empty if there is none."""
    file = folder / METRICS
    with reached(file, "read"):
        return file.read_bytes() if file.exists() else b""


def lines_of(content: bytes) -> list[Line]:
    """Returns all lines of scalars in the order of their steps, without those that a crash has truncated.

    Evaluations of earlier checkpoints are at the end of the file.
    """
    lines = [line for line in map(_scalars, content.splitlines()) if line is not None]
    return sorted(lines, key=lambda line: line["step"])


def in_order_of_file(content: bytes) -> list[Line]:
    """Returns all lines with a step and a split, whatever else they have."""
    return [line for line in map(_parsed, content.splitlines()) if line is not None]


def _parsed(text: bytes) -> Line | None:
    """Returns a line; None if it is not an object with a step and a split."""
    try:
        line = parsed(text)
        require_type(line, _Line, "the line")
    except ValueError:
        return None
    return line


def _scalars(text: bytes) -> Line | None:
    """Returns a line whose values, besides the split, are finite numbers or nulls; None if it is another one."""
    line = _parsed(text)
    if line is None or line["split"] == PROCESSES:
        return None
    for name, value in line.items():
        if type(value) is float:
            line[name] = value if math.isfinite(value) else None
        elif not (value is None or name == "split" or (type(value) is int and abs(value) <= LARGEST)):
            return None
    return line


@dataclasses.dataclass(frozen=True)
class Summary:
    """What a table of runs shows of metrics."""

    train: Line  # the last line of training; empty if there is none
    validation: Line  # the line of validation of the largest step; empty if there is none
    best: Line  # the line of validation with the lowest loss; empty if there is none
    evals: Mapping[str, float]  # the last value of each scalar of evaluation tasks, TASK/METRIC

    @property
    def step(self) -> int:
        """The last step with a line."""
        return max((line["step"] for line in (self.train, self.validation) if line), default=0)


def summary(content: bytes) -> Summary:
    """Returns the summary of the content of metrics.jsonl; most lines are not parsed."""
    train = next((line for line in map(_scalars, _backwards(content, TRAIN)) if line), {})
    validation = list(_backwards(content, VALIDATION))
    newest = _first(validation, _STEP, lowest=False)
    best = _first(validation, _LOSS, lowest=True)
    tasks = sorted((line for line in map(_scalars, _backwards(content, EVALS)) if line), key=lambda line: line["step"])
    evals = {name: value for line in tasks for name, value in line.items() if "/" in name and value is not None}
    return Summary(train, newest, best, evals)


def _backwards(content: bytes, split: str) -> Iterator[bytes]:
    """Yields the lines of a split from the last to the first."""
    key, end = b'"split": "' + split.encode() + b'"', len(content)
    while (at := content.rfind(key, 0, end)) >= 0:
        start = content.rfind(b"\n", 0, at) + 1
        stop = content.find(b"\n", at)
        yield content[start : len(content) if stop < 0 else stop]
        end = start


def _first(lines: Sequence[bytes], figure: re.Pattern[bytes], *, lowest: bool) -> Line:
    """Returns the line with the lowest or highest figure, the last of equal ones, among those that are complete.

    The lowest is that of the last phase of a run: phases have other data.
    """
    phase = lambda line: int(match[1]) if lowest and (match := _PHASE.search(line)) else 0
    found = [(float(match[1]), line) for line in lines if (match := figure.search(line))]
    found.sort(key=lambda pair: (-phase(pair[1]), pair[0] if lowest else -pair[0]))
    return next((parsed for parsed in (_scalars(line) for _, line in found) if parsed), {})


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


def higher_is_better(metric: str) -> bool | None:
    """Returns whether more of a metric is better; None if that is not known.

    >>> higher_is_better("arc_easy/acc_norm,none"), higher_is_better("loss"), higher_is_better("mine/score")
    (True, False, None)
    """
    name = metric.rpartition("/")[2].partition(",")[0]
    if name.endswith(LOWER):
        return False
    return True if "acc" in name or name.startswith(HIGHER) or name in HIGHER_NAMES else None
