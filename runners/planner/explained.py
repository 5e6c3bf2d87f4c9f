"""What a plan explains: buffers at the peak, memory over the schedule, and what would be slow, as rows and a chart."""

from registry.pages import figures
from registry.pages.page import table, text
from registry.tool import render
from runners.planner.cost import Plan

GIB = 2**30
BUFFER_COLUMNS = ("at the peak", "bytes", "layer or weight", "source")
FINDINGS_TITLE = "What would be slow here"


def buffer_cells(content: Plan) -> list[tuple[str, str, str, str]]:
    """Rows of the table of the largest buffers; the last is the sum of all others."""
    return [
        (one["what"], render.size(one["bytes"]), _weight(one["row"]) or one["layer"], one["source"])
        for one in content.get("peak_buffers", ())
    ]


def _weight(row: str) -> str:
    """Returns a path in the weight table without its collection."""
    return row.partition("/")[2]


def finding_lines(content: Plan) -> list[str]:
    """Returns a sentence per finding, with the knob that avoids it."""
    found = content.get("findings", ())
    return [" ".join([one["text"], *(f"Knob: {knob}." for knob in (one["knob"],) if knob)]) for one in found]


def kernels_sentence(content: Plan) -> str:
    """Returns which kernels compute attention; empty if that is unknown."""
    kernels = content.get("attention_kernels", {})
    return f"Attention: {'; '.join(f'{kernels[one]} in {one}' for one in kernels)}." if kernels else ""


def show(content: Plan) -> None:
    """Prints the largest buffers at the peak, and what would be slow."""
    out = render.console()
    if content.get("peak_unexplained"):
        out.print(content["peak_unexplained"])
    if content.get("peak_buffers"):
        rows = [(*row[:-1], row[-1].rpartition("/")[2]) for row in buffer_cells(content)]  # the file without its folder
        out.print(render.table(BUFFER_COLUMNS, rows, right=("bytes",), flexible={"at the peak": 12}))
    lines = finding_lines(content)
    if lines:
        out.print(f"{FINDINGS_TITLE}:")
        for number, line in enumerate(lines, 1):
            out.print(f"{number}. {line}")


def sections(content: Plan) -> list[str]:
    """Returns the parts of the page."""
    found = []
    if content.get("peak_unexplained"):
        found += ["<h2>Peak</h2>", f"<p>{text(content['peak_unexplained'])}</p>"]
    if content.get("peak_buffers"):
        found += ["<h2>Peak</h2>", _areas(content), table(BUFFER_COLUMNS, buffer_cells(content), ("bytes",))]
    if "findings" in content:
        items = "".join(f"<li>{text(line)}</li>" for line in finding_lines(content))
        found += [f"<h2>{FINDINGS_TITLE}</h2>", f"<ol>{items}</ol>" if items else "<p>Nothing was found.</p>"]
        found += [f"<p>{text(kernels_sentence(content))}</p>"] if content.get("attention_kernels") else []
    return found


def _areas(content: Plan) -> str:
    """Chart of memory over the program's schedule by kind, with a line at the peak."""
    schedule = content["peak_schedule"]
    places, peak = schedule["places"], schedule["peak"]
    kinds = {kind: amounts for kind, amounts in schedule["bytes"].items() if any(amounts)}
    at_peak = [(kind, render.size(amounts[peak])) for kind, amounts in kinds.items()]
    return figures.chart(
        figures.Chart(
            name="schedule",
            title="Memory over the program's schedule; the line is the peak",
            x=figures.Axis(title="share of the schedule", range=(0, 1)),
            y=figures.Axis(title="GiB per device"),
            series=[
                figures.Series(name=kind, x=places, y=[amount / GIB for amount in amounts], color=number, steps=True)
                for number, (kind, amounts) in enumerate(kinds.items())
            ],
            kind="areas",
            marks=[places[peak]],
            shape="wide",
            values=table(("part", "at the peak"), at_peak, ("at the peak",)),
        )
    )
