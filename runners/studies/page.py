"""The result of a study: a table on the terminal, and study.html with the importance of each setting."""

from collections.abc import Mapping
from typing import Any

from registry.pages import figures
from registry.pages.page import page, table, text, write_assets
from registry.tool import render
from runners.reports.results import title
from tasks.storage.files import Place, write_whole

PAGE = "study.html"
MOST_SHOWN = 20  # cases on the terminal


def show(summary: Mapping[str, Any]) -> None:
    """Prints the cases by loss, the best first, the errors of failed runs, and the number of updates."""
    columns, rows = _table(summary)
    out = render.console()
    right = ("case", *columns[1 + len(_settings(summary)) :])
    out.print(render.table(columns, rows[:MOST_SHOWN], title=_head(summary), right=right))
    if len(rows) > MOST_SHOWN:
        out.print(f"{len(rows) - MOST_SHOWN} more cases are in the page and in study.json.")
    for row in summary["cases"]:
        for error in row["errors"]:
            out.print(f"Case {row['case']} failed: {error}", markup=False)
    out.print(_spent(summary))


def write(folder: Place, summary: Mapping[str, Any]) -> None:
    """Writes the page and the assets that it loads."""
    columns, rows = _table(summary)
    errors = [(str(row["case"]), error) for row in summary["cases"] for error in row["errors"]]
    sections = [
        f"<h1>Study of {text(title(summary))}</h1>",
        f"<p class=doc>{text(_head(summary))}. {text(_spent(summary))}</p>",
        table(("", "text"), [("study", summary["study"]), ("runs", f"python -m registry runs '{folder / 'cases'}/*'")]),
        "<h2>Cases</h2>",
        table(columns, rows, columns[1 + len(_settings(summary)) :]),
        *_importance(summary),
        f"<h2>Failed runs</h2>{table(('case', 'error'), errors)}" if errors else "",
    ]
    write_assets(folder)
    name = f"Study of {title(summary)}"
    write_whole(folder / PAGE, page(name, sections, styles=figures.STYLES, scripts=figures.SCRIPTS))


def _importance(summary: Mapping[str, Any]) -> list[str]:
    shares = sorted(summary["importance"].items(), key=lambda item: -item[1])
    if not shares:
        return []
    series = [
        figures.Series(name=name, x=[100 * share], color=number, text=f"{share:.1%}")
        for number, (name, share) in enumerate(shares)
    ]
    chart = figures.Chart(
        name="importance",
        title="Variance of the losses that each setting alone explains",
        x=figures.Axis(title="percent", range=(0, 100)),
        series=series,
        kind="bars",
        shape="low",
    )
    step = "the end of the first rung" if summary["how"] == "halving" else "the end"
    note = f"Losses at {step}. What is missing from 100% is due to combinations."
    return ["<h2>Importance</h2>", f"<p class=note>{note}</p>", figures.chart(chart)]


def _head(summary: Mapping[str, Any]) -> str:
    seeds = f", {summary['seeds']} seeds each" if summary["seeds"] > 1 else ""
    return f"{len(summary['cases'])} cases by validation loss ({summary['how']}{seeds})"


def _spent(summary: Mapping[str, Any]) -> str:
    updates, complete = summary["updates"], summary["all_updates"]
    return f"{updates:,} updates, {updates / complete:.0%} of those of all cases."


def _settings(summary: Mapping[str, Any]) -> list[str]:
    return list(summary["cases"][0]["settings"])


def _table(summary: Mapping[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    steps = sorted({int(step) for row in summary["cases"] for step in row["losses"]})
    columns = ("case", *_settings(summary), *(f"step {step:,}" for step in steps))
    by_number = {row["case"]: row for row in summary["cases"]}
    rows = []
    for number in summary["order"]:
        row = by_number[number]
        shown = lambda step, row=row: "" if step not in row["losses"] else _loss(row["losses"][step])
        rows.append((str(number), *row["settings"].values(), *(shown(str(step)) for step in steps)))
    return columns, rows


def _loss(value: float | None) -> str:
    return "failed" if value is None else f"{value:.4f}"
