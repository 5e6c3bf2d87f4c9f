"""report.html: a run on one page, with its curves, weight table and config."""

import json
from collections.abc import Sequence
from typing import Any

from registry.records.record import EXPERIMENT
from registry.tool import render
from runners.evals import tables
from runners.reports import page
from runners.training import metrics_log
from tasks.storage.files import Place, write_whole

REPORT = "report.html"
CURVES = (
    ("loss", "loss (nats per token)"),
    ("bits_per_byte", "bits per byte"),
    ("learning_rate", "learning rate"),
    ("grad_norm", "gradient norm"),
    ("sequence_length", "positions per row"),
)
# Scalars of every run without a curve; all others are reported by layers.
PLAIN = (
    "step",
    "split",
    "objective",
    "perplexity",
    "bits_per_token",
    "accuracy",
    "param_norm",
    "tokens_seen",
    "flops",
    "mfu",
)
PLAIN += ("flops", "mfu", "tokens_per_second", "steps_per_second", "skipped_updates")
MOST_TASK_CURVES = 30  # a group like mmlu has hundreds


def write(workdir: Place) -> Place:
    """Writes the page from the files of the run folder; returns its path."""
    data = json.loads((workdir / EXPERIMENT).read_text())
    lines = list(metrics_log.read(workdir))
    parts = [
        f"<h1>{page.text(data['experiment'])}{' (smoke)' if data['smoke'] else ''}</h1>",
        f"<p class=doc>{page.text(' '.join([data.get('doc', ''), *('--set=' + o for o in data['overrides'])]))}</p>",
        _cards(data, lines),
        _figure(lines, CURVES) or "<p>No metrics yet.</p>",
        _of_layers([line for line in lines if line["split"] != metrics_log.EVALS]),
        _of_tasks([line for line in lines if line["split"] == metrics_log.EVALS]),
        _samples(workdir),
        "<h2>Weights</h2>",
        page.weights(data),
        "<h2>Knobs</h2>",
        page.table(("knob", "value", "set by"), ((k, v["value"], v["owner"]) for k, v in data["knobs"].items())),
        "<details><summary>Full config</summary>",
        page.table(("path", "value"), data["config"].items()),
        "</details>",
    ]
    write_whole(workdir / REPORT, page.page(data["experiment"], parts))
    return workdir / REPORT


def _cards(data: dict[str, Any], lines: Sequence[dict[str, Any]]) -> str:
    last = {
        split: next((line for line in reversed(lines) if line["split"] == split), {})
        for split in ("train", "validation")
    }
    measure = "bits_per_byte" if "bits_per_byte" in last["validation"] else "loss"
    cards = [
        ("step", f"{last['train'].get('step', 0):,}"),
        (
            f"validation {measure.replace('_', ' ')}",
            f"{last['validation'][measure]:.3f}" if last["validation"].get(measure) else "-",
        ),
        ("parameters", render.amount(data["totals"]["parameters"])),
        ("tokens seen", render.amount(int(last["train"].get("tokens_seen", 0)))),
        ("tokens per second", f"{last['train'].get('tokens_per_second') or 0:,.0f}"),
        ("mesh", render.mesh_text(data["mesh"])),
    ]
    return page.cards(cards)


def _samples(workdir: Place) -> str:
    files = sorted((workdir / "samples").glob("*.txt"))
    return f"<h2>Latest sample</h2><pre>{page.text(files[-1].read_text())}</pre>" if files else ""


def _of_layers(lines: Sequence[dict[str, Any]]) -> str:
    """Returns the curves of metrics that layers report, such as routers and codebooks."""
    known = {*PLAIN, *(key for key, _ in CURVES)}
    names = dict.fromkeys(key for line in lines for key in line if key not in known)
    figure = _figure(lines, [(name, name.replace("_", " ")) for name in names], columns=3)
    return f"<h2>Reported by layers</h2>{figure}" if figure else ""


def _of_tasks(lines: Sequence[dict[str, Any]]) -> str:
    """Returns the last results of each evaluation task, and curves of the tasks that were run at several steps."""
    if not lines:
        return ""
    last: dict[str, tuple[int, dict[str, float]]] = {}
    for line in lines:
        scalars = {name: value for name, value in line.items() if "/" in name and value is not None}
        if scalars:
            last[next(iter(scalars)).rpartition("/")[0]] = line["step"], scalars
    rows = ((str(step), *cells) for task, (step, of) in last.items() for cells in tables.rows({task: of}))
    shown = page.table(("step", *tables.COLUMNS), rows, ("step", *tables.NUMBERS))
    return f"<h2>Evaluation tasks</h2>{shown}{_task_curves(lines)}"


def _task_curves(lines: Sequence[dict[str, Any]]) -> str:
    steps: dict[str, set[int]] = {}
    for line in lines:
        for name in (name for name in line if "/" in name and tables.is_result(name)):
            steps.setdefault(name, set()).add(line["step"])
    curves = [(name, name) for name, at in steps.items() if len(at) > 1]
    return _figure(lines, curves[:MOST_TASK_CURVES], columns=3)


def _figure(lines: Sequence[dict[str, Any]], curves: Sequence[tuple[str, str]], columns: int = 2) -> str:
    shown = [(key, label) for key, label in curves if any(line.get(key) is not None for line in lines)]
    if not shown:
        return ""
    from matplotlib.figure import Figure

    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(11, 6.2 / columns * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis, (key, label) in zip(axes, shown, strict=False):
        for split, style in (
            ("train", {"lw": 1.2, "color": "#6b8fb5"}),
            ("validation", {"lw": 1.8, "color": "#c0392b", "marker": "o", "ms": 3}),
            (metrics_log.EVALS, {"lw": 1.8, "color": "#2e8b57", "marker": "o", "ms": 3}),
        ):
            points = [
                (line["step"], line[key]) for line in lines if line["split"] == split and line.get(key) is not None
            ]
            if points:
                axis.plot(*zip(*points, strict=True), label=split, **style)
        axis.set_title(label, fontsize=10, loc="left")
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        if key in ("loss", "bits_per_byte"):
            axis.legend(frameon=False, fontsize=9)
    for axis in axes[len(shown) :]:
        axis.set_axis_off()
    return page.image(figure, "curves")
