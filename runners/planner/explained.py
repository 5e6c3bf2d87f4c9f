"""What a plan explains: buffers at the peak, memory over the schedule, and what would be slow, as rows and a chart."""

from registry.pages import figures
from registry.pages.page import table, text
from registry.tool import render
from runners.machine.chips import GIB
from runners.planner.cost import Plan

BUFFER_COLUMNS = ("at the peak", "bytes", "layer or weight", "source")
KERNEL_COLUMNS = ("kernels", "count", "per device and step")
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


def kernels_sentence(content: Plan) -> str:
    """Returns which kernels compute attention; empty if that is unknown."""
    kernels = content.get("kernels", {}).get("attention", {})
    places: dict[str, list[str]] = {}
    for place, kernel in kernels.items():
        places.setdefault(kernel, []).append(place)
    texts = "; ".join(f"{kernel} in {', '.join(named)}" for kernel, named in places.items())
    return f"Attention: {texts}." if texts else ""


def kernel_cells(content: Plan) -> list[tuple[str, str, str]]:
    """Rows of the table of kernels: products by element type, arrays of scores, copies."""
    kernels = content["kernels"]
    return [
        *(
            (f"products in {one['dtype']}", f"{one['count']:,}", f"{one['flops']:.4g} FLOPs")
            for one in kernels["products"]
        ),
        *(
            (f"scores {one['array']} in {one['layer']}", f"{one['count']:,}", render.size(one["bytes"]))
            for one in kernels["scores"]
        ),
        ("copies and transposes", f"{kernels['copies']['count']:,}", render.size(kernels["copies"]["bytes"])),
    ]


def show(content: Plan) -> None:
    """Prints the largest buffers at the peak, and what would be slow."""
    out = render.console()
    if content.get("peak_unexplained"):
        out.print(content["peak_unexplained"])
    if content.get("peak_buffers"):
        rows = [(*row[:-1], row[-1].rpartition("/")[2]) for row in buffer_cells(content)]  # the file without its folder
        out.print(render.table(BUFFER_COLUMNS, rows, right=("bytes",), flexible={"at the peak": 12}))
    if kernels_sentence(content):
        out.print(kernels_sentence(content))
    if content.get("findings"):
        out.print(f"{FINDINGS_TITLE}:")
        for number, one in enumerate(content["findings"], 1):
            out.print(f"{number}. {one['text']}")


def sections(content: Plan) -> list[str]:
    """Returns the parts of the page."""
    found = []
    if content.get("peak_unexplained"):
        found += ["<h2>Peak</h2>", f"<p>{text(content['peak_unexplained'])}</p>"]
    if content.get("peak_buffers"):
        found += ["<h2>Peak</h2>", _areas(content), table(BUFFER_COLUMNS, buffer_cells(content), ("bytes",))]
    if kernels_sentence(content):
        found += ["<h2>Kernels</h2>", f"<p>{text(kernels_sentence(content))}</p>"]
    if "findings" in content:
        items = "".join(f"<li>{text(one['text'])}</li>" for one in content["findings"])
        found += [table(KERNEL_COLUMNS, kernel_cells(content), KERNEL_COLUMNS[1:])]
        found += [f"<h2>{FINDINGS_TITLE}</h2>", f"<ol>{items}</ol>" if items else "<p>Nothing was found.</p>"]
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
