"""report.html: a run on one page, with its curves, its weight table and its settings."""

import base64
import html
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from registry import render
from runners import metrics_log
from runners.workdir import EXPERIMENT, write_atomically

REPORT = "report.html"
CURVES = (
    ("loss", "loss (nats per token)"),
    ("bits_per_byte", "bits per byte"),
    ("learning_rate", "learning rate"),
    ("grad_norm", "gradient norm"),
)
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2024; background: #fff }
body { margin: 2rem auto; max-width: 72rem; padding: 0 1rem }
h1 { font-size: 1.6rem; margin-bottom: 0 } h2 { font-size: 1.15rem; margin-top: 2.2rem }
p.doc { color: #555; margin-top: .2rem } img { max-width: 100% }
table { border-collapse: collapse; font-size: 13px; width: 100% }
th { text-align: left; border-bottom: 2px solid #ccc }
th, td { padding: .25rem .7rem .25rem 0; vertical-align: top }
td { border-bottom: 1px solid #eee; font-family: ui-monospace, monospace }
td.n, th.n { text-align: right; white-space: nowrap }
.cards { display: flex; gap: 1rem; flex-wrap: wrap; margin: 1.2rem 0 }
.card { background: #f4f6f8; border-radius: .5rem; padding: .6rem 1rem } .card b { display: block; font-size: 1.3rem }
details summary { cursor: pointer; color: #335 }
pre { background: #f4f6f8; padding: .8rem; overflow-x: auto; white-space: pre-wrap }
"""


def write(workdir: Path) -> Path:
    """Writes the page from what the run folder holds; returns its path."""
    data = json.loads((workdir / EXPERIMENT).read_text())
    lines = list(metrics_log.read(workdir))
    parts = [
        f"<h1>{_text(data['experiment'])}{' (smoke)' if data['smoke'] else ''}</h1>",
        f"<p class=doc>{_text(' '.join([data.get('doc', ''), *('--set=' + o for o in data['overrides'])]))}</p>",
        _cards(data, lines),
        _curves(lines) or "<p>No metrics yet.</p>",
        _samples(workdir),
        "<h2>Weights</h2>",
        _weights(data),
        "<h2>Knobs</h2>",
        _table(("knob", "value", "set by"), ((k, v["value"], v["owner"]) for k, v in data["knobs"].items())),
        "<details><summary>The whole config</summary>",
        _table(("path", "value"), data["config"].items()),
        "</details>",
    ]
    title = _text(data["experiment"])
    head = f"<meta charset=utf-8><title>{title}</title><style>{STYLE}</style>"
    page = f"<!doctype html><html lang=en>{head}<body>{''.join(parts)}</body></html>\n"
    write_atomically(workdir / REPORT, page)
    return workdir / REPORT


def _text(value: Any) -> str:
    return html.escape(str(value))


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
    return (
        "<div class=cards>" + "".join(f"<div class=card>{_text(k)}<b>{_text(v)}</b></div>" for k, v in cards) + "</div>"
    )


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]], numbers: Sequence[str] = ()) -> str:
    kinds = [" class=n" if column in numbers else "" for column in columns]
    head = "".join(f"<th{kind}>{_text(column)}" for column, kind in zip(columns, kinds, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{_text(cell)}" for cell, kind in zip(row, kinds, strict=True)) for row in rows
    )
    return f"<table><tr>{head}{body}</table>"


def _weights(data: dict[str, Any]) -> str:
    totals = data["totals"]
    held, slots = (render.size(totals[f"{kind}bytes_per_device"]) for kind in ("", "optimizer_"))
    say = f"<p>{totals['parameters']:,} parameters; per device {held} of weights and {slots} of optimizer state.</p>"
    return say + _table(render.WEIGHT_COLUMNS, map(render.weight_cells, data["weights"]), render.WEIGHT_NUMBERS)


def _samples(workdir: Path) -> str:
    files = sorted((workdir / "samples").glob("*.txt"))
    return f"<h2>Latest sample</h2><pre>{_text(files[-1].read_text())}</pre>" if files else ""


def _curves(lines: Sequence[dict[str, Any]]) -> str:
    shown = [(key, label) for key, label in CURVES if any(line.get(key) is not None for line in lines)]
    if not shown:
        return ""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.1 * ((len(shown) + 1) // 2)), layout="constrained")
    axes = figure.subplots((len(shown) + 1) // 2, 2, squeeze=False).ravel()
    for axis, (key, label) in zip(axes, shown, strict=False):
        for split, style in (
            ("train", {"lw": 1.2, "color": "#6b8fb5"}),
            ("validation", {"lw": 1.8, "color": "#c0392b", "marker": "o", "ms": 3}),
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
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=110)
    return f"<img alt=curves src='data:image/png;base64,{base64.b64encode(image.getvalue()).decode()}'>"
