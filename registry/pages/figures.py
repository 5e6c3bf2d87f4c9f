"""Interactive charts on pages: lines, areas and bars, drawn by plotly in assets/figures.js, with tables of values."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from registry.pages.page import ASSETS, PLOTLY, render, script_data, table

SCRIPTS = (PLOTLY, f"{ASSETS}/readout.js", f"{ASSETS}/figures.js")  # for `scripts` of a page with charts
STYLES = (f"{ASSETS}/figures.css",)  # for `styles` of a page with charts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Axis:
    """An axis of a chart."""

    title: str
    log: bool = False  # logarithmic at first; readers can switch it
    ticks: Sequence[float] | None = None  # None: chosen by plotly
    labels: Sequence[str] | None = None  # of the ticks; None: their numbers
    format: str = ""  # of d3, for ticks that plotly chooses: "~s" for 200k
    range: tuple[float, float] | None = None  # of a linear axis; None: that of the values


@dataclasses.dataclass(frozen=True, kw_only=True)
class Series:
    """A line of a chart, or a part of its bar."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None] = ()
    color: int = 0  # number of a hue
    points: bool = False  # marks the values
    dashed: bool = False
    faint: bool = False  # of less interest
    steps: bool = False  # constant around each x: a histogram
    best: int | None = None  # index of the value with a star
    text: str | None = None  # of a part of a bar, for readers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart of lines over x, of areas stacked over x, or one horizontal bar of parts."""

    name: str  # unique on its page
    title: str
    x: Axis
    y: Axis = Axis(title="")
    series: Sequence[Series]
    kind: Literal["lines", "areas", "bars"] = "lines"
    marks: Sequence[float] = ()  # x of vertical lines
    shape: Literal["", "wide", "low"] = ""  # of its box
    values: str = ""  # HTML of the table of its values; empty: a row per series


def chart(content: Chart) -> str:
    """Returns a chart with its data, a legend and a table of its values."""
    data = {
        "kind": content.kind,
        "x": dataclasses.asdict(content.x),
        "y": dataclasses.asdict(content.y),
        "series": [dataclasses.asdict(one) for one in content.series],
        "marks": [{"x": mark} for mark in content.marks],
    }
    names = ", ".join(one.name for one in content.series)
    label = f"{content.title}: {content.y.title or 'values'} by {content.x.title} of {names}. Arrow keys show values."
    if content.kind == "bars":
        label = f"{content.title}: {', '.join(f'{one.name} {one.text}' for one in content.series)}."
    return render("chart.jinja", chart=content, label=label, values=content.values or _values(content)) + script_data(
        f"chart-{content.name}", data
    )


def _values(content: Chart) -> str:
    """Returns the table of a chart: a row per series, a column per x (or the value of a part of a bar)."""
    if content.kind == "bars":
        return table(("part", content.x.title), [(one.name, one.text) for one in content.series], (content.x.title,))
    places = sorted({x for one in content.series for x in one.x})
    columns = [_number(x) for x in places]
    rows = []
    for one in content.series:
        known: dict[float, Any] = dict(zip(one.x, one.y, strict=True))
        rows.append((one.name, *(_number(known.get(x)) for x in places)))
    return table((content.x.title, *columns), rows, columns)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"
