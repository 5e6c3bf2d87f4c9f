"""sweep.html: validation loss by learning rate and width, and training at the best rate of the smallest width."""

from collections.abc import Mapping
from typing import Any

from registry.pages import figures
from registry.pages.page import page, table, text, write_assets
from runners.reports.results import title
from runners.widths.widths import rate_text
from tasks.storage.files import Place, write_whole

PAGE = "sweep.html"
LOSS = "loss (nats per token)"


def write(folder: Place, summary: Mapping[str, Any]) -> None:
    """Writes the page and the assets that it loads."""
    rates = [rate_text(rate) for rate in summary["rates"]]
    rows = [(f"width {row['width']}", *_cells(row)) for row in summary["rows"]]
    drift = summary["drift_log2"]
    note = "" if drift is None else f" From the smallest to the largest width it moves by {drift:+.2f} in log2."
    sections = [
        f"<h1>Sweep of {text(title(summary))}</h1>",
        f"<p class=doc>Validation loss by learning rate. A star marks the best rate of each width.{note}</p>",
        f"<div class=curves>{figures.chart(_by_rate(summary))}{_training(summary)}</div>",
        "<h2>Validation loss</h2>",
        table(("", *rates), rows, rates),
    ]
    write_assets(folder)
    write_whole(
        folder / PAGE, page(f"Sweep of {title(summary)}", sections, styles=figures.STYLES, scripts=figures.SCRIPTS)
    )


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [
        "diverged" if loss is None else f"{loss:.4f}{'*' if index == row['best'] else ''}"
        for index, loss in enumerate(row["losses"])
    ]


def _by_rate(summary: Mapping[str, Any]) -> figures.Chart:
    series = [
        figures.Series(
            name=f"width {row['width']}",
            x=summary["rates"],
            y=row["losses"],
            color=number,
            points=True,
            best=row["best"],
        )
        for number, row in enumerate(summary["rows"])
    ]
    return figures.Chart(
        name="rates",
        title="Validation loss by learning rate",
        x=figures.Axis(
            title="learning rate",
            log=True,
            ticks=summary["rates"],
            labels=[rate_text(rate) for rate in summary["rates"]],
        ),
        y=figures.Axis(title=LOSS),
        series=series,
    )


def _training(summary: Mapping[str, Any]) -> str:
    """Chart of training at the best rate of the smallest width; empty if every rate diverged there."""
    best = summary["rows"][0]["best"]
    if best is None:
        return ""
    series = []
    for number, row in enumerate(summary["rows"]):
        steps, losses = zip(*row["train"][best], strict=True)
        series.append(figures.Series(name=f"width {row['width']}", x=steps, y=losses, color=number, points=True))
    rate, width = rate_text(summary["rates"][best]), summary["rows"][0]["width"]
    chart = figures.Chart(
        name="training",
        title=f"Training at {rate}, the best of width {width}",
        x=figures.Axis(title="update"),
        y=figures.Axis(title=LOSS),
        series=series,
    )
    return figures.chart(chart)
