"""coord_check.html: statistics of activations against width, a chart per statistic and step, and the gates."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from registry.pages import figures
from registry.pages.page import cards, page, table, text, write_assets
from runners.reports.results import title
from runners.widths.coord_gates import Slopes, parts
from runners.widths.coord_plot import COLORS, is_shown
from runners.widths.widths import rate_text
from tasks.storage.files import Place, write_whole

PAGE = "coord_check.html"
GATES = ("activation", "statistic", "step", "slope", "band", "in its band")
HUES = {name: number for number, name in enumerate(dict.fromkeys(COLORS.values()))}  # number of a color
STATISTICS = {"size": "mean |x|", "change": "mean |x - x at the start|"}


def write(
    folder: Place,
    record: Mapping[str, Any],
    statistics: Mapping[str, Mapping[str, np.ndarray]],
    slopes: Slopes,
) -> None:
    """Writes the page and the assets that it loads."""
    charts = [
        figures.chart(_chart(record, statistics, slopes, kind, step))
        for kind in STATISTICS
        for step in range(record["steps"] + 1)
        if kind == "size" or step > 0
    ]
    pairs = [
        ("coordinate check", "passed" if record["passed"] else "failed"),
        ("parametrization", record["parametrization"]),
        ("learning rate", rate_text(record["learning_rate"])),
        ("widths", ", ".join(map(str, record["widths"]))),
        ("seeds", record["seeds"]),
    ]
    sections = [
        f"<h1>Coordinate check of {text(title(record))}</h1>",
        "<p class=doc>Statistics of activations by width. Names end with the slope of log2(statistic) against "
        "log2(width). Pale lines have no gate; ! marks slopes outside their bands.</p>",
        cards(pairs),
        f"<div class=curves>{''.join(charts)}</div>",
        "<h2>Gates</h2>",
        table(GATES, _gate_rows(record["gates"]), GATES[2:5]),
    ]
    write_assets(folder)
    write_whole(
        folder / PAGE,
        page(f"Coordinate check of {title(record)}", sections, styles=figures.STYLES, scripts=figures.SCRIPTS),
    )


def _chart(
    record: Mapping[str, Any], statistics: Mapping[str, Any], slopes: Slopes, kind: str, step: int
) -> figures.Chart:
    gates = {g["activation"]: g["ok"] for g in record["gates"] if (g["statistic"], g["step"]) == (kind, step)}
    series = []
    for name in statistics:
        slope, (layer, short) = slopes[name][kind][step], parts(name)
        if slope is None or not is_shown(name, statistics):
            continue
        values = [float(value) if value > 0 else None for value in statistics[name][kind][step]]
        mark = "" if gates.get(name, True) else " !"
        series.append(
            figures.Series(
                name=f"{name.rpartition('_')[0] if '_bs' in name else name} {slope:+.2f}{mark}",
                x=record["widths"],
                y=values,
                color=HUES[COLORS[short]],
                points=True,
                dashed=layer not in (None, 0),
                faint=name not in gates,
            )
        )
    return figures.Chart(
        name=f"{kind}-{step}",
        title=f"{kind.capitalize()} {'at the start' if step == 0 else f'after update {step}'}",
        x=figures.Axis(title="width", log=True, ticks=record["widths"]),
        y=figures.Axis(title=STATISTICS[kind], log=True),
        series=series,
    )


def _gate_rows(gates: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Returns the rows of the gates, those outside their bands first."""
    return [
        (
            gate["activation"],
            gate["statistic"],
            str(gate["step"]),
            f"{gate['slope']:+.3f}",
            f"{gate['low']:+.2f} to {gate['high']:+.2f}",
            "yes" if gate["ok"] else "no",
        )
        for gate in sorted(gates, key=lambda gate: gate["ok"])
    ]
