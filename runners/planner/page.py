"""plan.json and plan.html: the files of a plan."""

import json

from registry.experiment import Experiment
from registry.pages import figures
from registry.pages.page import page, table, text, write_assets
from registry.pages.weights import weights
from registry.records.snapshot import weight_summary
from registry.tool import render
from runners.machine.chips import GIB
from runners.planner import network
from runners.planner.cost import Plan
from runners.planner.explained import sections as explained
from runners.planner.summary import (
    ESTIMATE,
    collective_table,
    fit_message,
    machine_text,
    numbers,
    parts,
)
from runners.reports.results import title
from tasks.storage.files import Place, write_whole


def write(content: Plan, experiment: Experiment, folder: Place) -> None:
    """Writes plan.json, plan.html and the assets that the page loads."""
    write_whole(folder / "plan.json", json.dumps(content, indent=1) + "\n")
    write_assets(folder)
    columns, rows = collective_table(content)
    message = network.warning(content)
    sections = [
        f"<h1>{text(title(content))}: the plan of a {text(content['step'])} step</h1>",
        f"<p class=doc>{text(machine_text(content))}</p>",
        f"<p><b>{text(fit_message(content))}</b></p>",
        _bar(content),
        *explained(content),
        "<h2>Cost</h2>",
        table(("figure", "value"), numbers(content)),
        f"<p>{text(ESTIMATE)}</p>" if content.get("roofline_is_estimate") else "",
        "<h2>Collectives</h2>",
        table(columns, rows, columns[3:]),
        f"<p><b>Warning:</b> {text(message)}</p>" if message else "",
        "<h2>Weights</h2>",
        weights(weight_summary(experiment, content["mesh"])),
    ]
    write_whole(
        folder / "plan.html",
        page(f"Plan of {title(content)}", sections, styles=figures.STYLES, scripts=figures.SCRIPTS),
    )


def _bar(content: Plan) -> str:
    """Bar chart of the memory per device by kind, with a line at the capacity."""
    capacity, shares = content["capacity_bytes_per_device"], parts(content)
    line = "" if capacity is None else f"; the line is the capacity, {render.size(capacity)}"
    end = max(sum(shares.values()), capacity or 0) / GIB
    chart = figures.Chart(
        name="memory",
        title=f"Memory per device{line}",
        x=figures.Axis(title="GiB per device", range=(0, end * 1.03)),
        series=[
            figures.Series(name=name, x=[amount / GIB], color=number, text=render.size(amount))
            for number, (name, amount) in enumerate(shares.items())
        ],
        kind="bars",
        marks=[] if capacity is None else [capacity / GIB],
        shape="low",
    )
    return figures.chart(chart)
