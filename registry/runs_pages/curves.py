"""Curves of runs as data for assets/curves.js: metrics by split over steps, and the axes that can replace steps."""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from registry.pages.figures import SCRIPTS as FIGURES
from registry.pages.page import ASSETS, render
from registry.runs import metrics
from registry.runs.metrics import EVALS, TRAIN, WEIGHTS
from registry.runs_pages.task_results import is_result

SCRIPTS = (*FIGURES, f"{ASSETS}/curves.js")  # for `scripts` of a page with curves
AXES = {"step": "steps", "tokens": "tokens", "flops": "FLOPs", "seconds": "time"}  # their labels
SCALARS = {axis: scalar for axis, scalar in metrics.AXES.items() if axis != "step"}  # of lines of training
MOST_POINTS = 2000  # of a curve; of more, the lowest and highest in each of equally many buckets
MOST = 30  # curves of evaluation tasks, of which a group like mmlu has hundreds, and of weights
RATIO = "update_ratio/"  # before the name of a weight

MAIN = {
    "loss": "loss (nats per token)",
    "bits_per_byte": "bits per byte",
    "learning_rate": "learning rate",
    "grad_norm": "gradient norm",
    "sequence_length": "positions per row",
}
MORE = {
    "accuracy": "accuracy",
    "tokens_per_second": "tokens per second",
    "mfu": "MFU",
    "param_norm": "norm of the weights",
    "skipped_updates": "skipped updates",
}
# Scalars of every run without a curve: others in another unit, and axes. All further ones are reported by layers.
PLAIN = ("step", "split", "phase", "objective", "perplexity", "bits_per_token", "steps_per_second", *SCALARS.values())

Line = Mapping[str, Any]  # a line of metrics.jsonl: "step", "split" and scalars


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """Figures under one title: the label of each metric."""

    title: str
    curves: Mapping[str, str]
    is_small: bool = False
    before: str = ""  # HTML above the figures


def curves(lines: Sequence[Line]) -> dict[str, Any]:
    """Returns the curves of a run.

    Args:
      lines: the lines of metrics.jsonl; those of training with their `seconds`.

    Returns:
      `axes`, equally long sequences by name: the steps of the lines of training, and what has been reached there;
      `series`, the steps and values of each metric by split, at most MOST_POINTS.
    """
    points: dict[str, dict[str, tuple[list[int], list[float | None]]]] = {}
    for line in lines:
        for name, value in line.items():
            if name not in PLAIN and (value is None or isinstance(value, int | float)):
                steps, values = points.setdefault(name, {}).setdefault(line["split"], ([], []))
                steps.append(line["step"])
                values.append(_rounded(value))
    by_split = {
        name: {split: downsampled(*both) for split, both in splits.items() if any(y is not None for y in both[1])}
        for name, splits in points.items()
    }
    return {"axes": _axes(lines), "series": {name: splits for name, splits in by_split.items() if splits}}


def _axes(lines: Sequence[Line]) -> dict[str, list[float | None]]:
    """Returns the axes that all lines of training have."""
    train = [line for line in lines if line["split"] == TRAIN]
    stride = max(1, -(-len(train) // MOST_POINTS))
    train = [*train[stride - 1 :: stride], *(train[-1:] if len(train) % stride else ())]
    known = {name: scalar for name, scalar in SCALARS.items() if all(line.get(scalar) is not None for line in train)}
    axes = {name: [_rounded(line[scalar], 9) for line in train] for name, scalar in known.items() if train}
    return {"step": [_rounded(line["step"]) for line in train], **axes}


def downsampled(
    steps: Sequence[int], values: Sequence[float | None], most: int = MOST_POINTS
) -> tuple[list[int], list[float | None]]:
    """Returns at most `most` points of a curve: its ends, and the lowest and highest value of each bucket of steps."""
    if len(steps) <= most:
        return list(steps), list(values)
    buckets = (most - 2) // 2
    bounds = [1 + (len(steps) - 2) * number // buckets for number in range(buckets + 1)]
    kept = [0]
    for start, end in itertools.pairwise(bounds):
        known = [index for index in range(start, end) if values[index] is not None]
        if not known:
            kept.append(start)  # a gap, as null
            continue
        key = lambda index: values[index] or 0.0
        kept += sorted({min(known, key=key), max(known, key=key)})
    kept.append(len(steps) - 1)
    return [steps[index] for index in kept], [values[index] for index in kept]


def _rounded(value: float | None, digits: int = 6) -> float | None:
    """Returns a number with so many significant digits, which keeps pages small."""
    return value if value is None or isinstance(value, int) else float(f"{value:.{digits}g}")


def groups(runs: Iterable[Mapping[str, Any]], *, tasks: str = "") -> list[Group]:
    """Returns the figures that the curves of runs need.

    Args:
      runs: what `curves` returned for each.
      tasks: HTML above the figures of evaluation tasks.
    """
    found: dict[str, set[str]] = {}
    lengths: dict[str, int] = {}
    for run in runs:
        for name, splits in run["series"].items():
            found.setdefault(name, set()).update(splits)
            lengths[name] = max(lengths.get(name, 0), *(len(set(steps)) for steps, _ in splits.values()))
    of_tasks = [name for name, splits in found.items() if splits == {EVALS} and is_result(name) and lengths[name] > 1]
    of_layers = [n for n, splits in found.items() if n not in {**MAIN, **MORE} and splits not in ({EVALS}, {WEIGHTS})]
    ratios = [name for name, splits in found.items() if splits == {WEIGHTS} and name.startswith(RATIO)]
    made = [
        Group(title="Curves", curves={name: label for name, label in MAIN.items() if name in found}),
        Group(title="Reported by layers", curves={name: name.replace("_", " ") for name in of_layers}, is_small=True),
        Group(title="Evaluation tasks", curves={name: name for name in of_tasks[:MOST]}, is_small=True, before=tasks),
        Group(
            title="Update ratios of weights", curves={n: n.removeprefix(RATIO) for n in ratios[:MOST]}, is_small=True
        ),
        Group(
            title="Speed and more", curves={name: label for name, label in MORE.items() if name in found}, is_small=True
        ),
    ]
    return [group for group in made if group.curves or group.before]


def panel(name: str, shown: Sequence[Group], axes: Iterable[str], *, source: str = "") -> str:
    """Returns the controls and the empty figures of curves, which a script of the page fills.

    Args:
      name: the run, or empty for several.
      shown: the figures.
      axes: names in AXES that can be chosen.
      source: path of the script that holds the run's data; empty if the page holds it.
    """
    return render("curves.jinja", name=name, groups=shown, axes=AXES, known=list(axes), source=source)
