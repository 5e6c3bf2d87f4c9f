"""scale.html: the runs, the law, the parabolas of equal FLOPs, and advice."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from registry.pages import figures
from registry.pages.page import page, table, text, write_assets
from registry.records.quantities import amount
from runners.reports.results import title
from runners.scaling.law import Law, Parabola
from runners.scaling.text import ADVICE, advice_rows, run_table, sentences
from tasks.storage.files import Place, write_whole

PAGE = "scale.html"
LOSS = "loss (nats per token)"
POINTS = 25  # of a curve


def write(folder: Place, summary: Mapping[str, Any]) -> None:
    """Writes the page and the assets that it loads."""
    columns, rows = run_table(summary)
    failed = list(summary["errors"].items())
    sections = [
        f"<h1>Scaling law of {text(title(summary))}</h1>",
        *(f"<p class=doc>{text(sentence)}</p>" for sentence in sentences(summary)),
        f"<div class=curves>{figures.chart(_isoflops(summary))}{_predictions(summary)}</div>",
        "<h2>Runs</h2>",
        table(columns, rows, columns),
        _advice(summary),
        f"<h2>Failed runs</h2>{table(('run', 'error'), failed)}" if failed else "",
    ]
    write_assets(folder)
    name = f"Scaling law of {title(summary)}"
    write_whole(folder / PAGE, page(name, sections, styles=figures.STYLES, scripts=figures.SCRIPTS))


def _advice(summary: Mapping[str, Any]) -> str:
    if not summary["advice"]:
        return ""
    note = "The widths are built, and their weights and FLOPs are counted. The law extrapolates the loss alone."
    heading = f"<h2>Best width of a budget</h2><p class=note>{note}</p>"
    return heading + table(ADVICE, advice_rows(summary), ADVICE)


def by_budget(summary: Mapping[str, Any]) -> list[tuple[float, list[Mapping[str, Any]]]]:
    """Returns the trained rows that were fitted, by budget, the smallest model first."""
    fitted = [row for row in summary["rows"] if not row["held_out"] and row["loss"] is not None]
    return [
        (budget, sorted((row for row in fitted if row["budget"] == budget), key=lambda row: row["parameters"]))
        for budget in sorted({row["budget"] for row in fitted})
    ]


def curve(
    summary: Mapping[str, Any], budget: float, ends: tuple[float, float]
) -> tuple[list[float], list[float]] | None:
    """Returns sizes between two ends, and the losses of the budget's parabola; None if it has none."""
    for each in summary["parabolas"]:
        if each["budget"] == budget:
            fitted = Parabola(tuple(each["coefficients"]), each["parameters"], each["loss"])
            sizes = np.geomspace(ends[0], ends[1], POINTS).tolist()
            return sizes, [fitted.at(size) for size in sizes]
    return None


def law_of(summary: Mapping[str, Any]) -> Law | None:
    """Returns the law of a summary."""
    found = summary["law"]
    return None if found is None else Law(*(found[name]["value"] for name in ("E", "A", "B", "alpha", "beta")))


def _isoflops(summary: Mapping[str, Any]) -> figures.Chart:
    series, ticks = [], sizes_of(summary)
    for number, (budget, rows) in enumerate(by_budget(summary)):
        sizes = [row["parameters"] for row in rows]
        name = f"{budget:.3g} FLOPs"
        series.append(
            figures.Series(name=name, x=sizes, y=[row["loss"] for row in rows], color=number, points=True, faint=True)
        )
        if (found := curve(summary, budget, (sizes[0], sizes[-1]))) is not None:
            series.append(figures.Series(name=f"{name}, parabola", x=found[0], y=found[1], color=number, dashed=True))
    return figures.Chart(
        name="isoflops",
        title="Validation loss by size, at equal FLOPs",
        x=figures.Axis(title="parameters", log=True, ticks=ticks, labels=[amount(size) for size in ticks]),
        y=figures.Axis(title=LOSS),
        series=series,
        values=_values(summary),
    )


def sizes_of(summary: Mapping[str, Any]) -> list[int]:
    """Returns N of each width that was fitted, the smallest first."""
    return sorted({row["parameters"] for row in summary["rows"] if not row["held_out"]})


def _values(summary: Mapping[str, Any]) -> str:
    sizes = sizes_of(summary)
    columns = [amount(size) for size in sizes]
    rows = []
    for budget, found in by_budget(summary):
        losses = {row["parameters"]: f"{row['loss']:.4f}" for row in found}
        rows.append((f"{budget:.3g}", *(losses.get(size, "-") for size in sizes)))
    return table(("FLOPs", *columns), rows, columns)


def _predictions(summary: Mapping[str, Any]) -> str:
    """Chart of the losses of runs and of the law, by tokens; empty without a law."""
    law = law_of(summary)
    if law is None:
        return ""
    series = []
    trained = [row for row in summary["rows"] if row["loss"] is not None]
    for number, width in enumerate(sorted({row["width"] for row in trained})):
        rows = sorted((row for row in trained if row["width"] == width), key=lambda row: row["tokens"])
        tokens = [row["tokens"] for row in rows]
        name = f"width {width}"
        losses = [row["loss"] for row in rows]
        series.append(figures.Series(name=name, x=tokens, y=losses, color=number, points=True, faint=True))
        lengths = np.geomspace(tokens[0], tokens[-1], POINTS).tolist() if len(tokens) > 1 else tokens
        curve = [law.loss(rows[0]["parameters"], each) for each in lengths]
        series.append(figures.Series(name=f"{name}, law", x=lengths, y=curve, color=number, dashed=True))
    columns = ("width", "tokens", "loss", "law")
    values = [
        (str(row["width"]), amount(row["tokens"]), f"{row['loss']:.4f}", f"{row['predicted']:.4f}") for row in trained
    ]
    return figures.chart(
        figures.Chart(
            name="law",
            title="Validation loss by tokens: runs and the law",
            x=figures.Axis(title="tokens", log=True, format="~s"),
            y=figures.Axis(title=LOSS),
            series=series,
            values=table(columns, values, columns),
        )
    )
