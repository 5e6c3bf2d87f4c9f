"""Plot of a sweep: loss against learning rate by width, and training loss by width at one rate."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from runners.reports.plots import finish, save
from runners.reports.results import title
from runners.widths.widths import rate_text
from tasks.storage.files import Place


def draw(file: Place, summary: Mapping[str, Any]) -> None:
    """Writes the plot; a star marks the best rate of each width."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    x, rows = np.log2(summary["rates"]), summary["rows"]
    colors = [f"C{index}" for index in range(len(rows))]
    for row, color in zip(rows, colors, strict=True):
        y = np.array([np.nan if loss is None else loss for loss in row["losses"]])
        left.plot(x, y, marker="o", ms=3, lw=1.4, color=color, label=f"width {row['width']}")
        if row["best"] is not None:
            left.plot(x[row["best"]], y[row["best"]], marker="*", ms=13, color=color)
    left.set_title(title(summary), fontsize=10, loc="left")
    left.set_xlabel("log2(learning rate)")
    left.set_ylabel("validation loss (nats per token)")
    first = rows[0]["best"]
    if first is not None:
        for row, color in zip(rows, colors, strict=True):
            steps, losses = zip(*row["train"][first], strict=True)
            values = [np.nan if loss is None else loss for loss in losses]
            right.plot(steps, values, marker="o", ms=2, lw=1.4, color=color, label=f"width {row['width']}")
        _leave_out_the_fall(right)
        rate = rate_text(summary["rates"][first])
        right.set_title(f"training at {rate}, the best of width {rows[0]['width']}", fontsize=10, loc="left")
    right.set_xlabel("update")
    right.set_ylabel("training loss (nats per token)")
    finish((left, right))
    save(file, figure)


def _leave_out_the_fall(axis: Any) -> None:
    """Clips the y axis to the losses after the first tenth of the run, whose steep decrease would hide the rest."""
    values = [line.get_ydata() for line in axis.lines]
    later = np.concatenate([y[len(y) // 10 + 1 :] for y in values])
    if later.size and np.any(np.isfinite(later)):
        low, high = np.nanmin(later), np.nanmax(later)
        axis.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
