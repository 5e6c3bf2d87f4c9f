"""Plot of a ladder: parabolas of equal FLOPs, and the losses of runs against those of the law."""

from collections.abc import Mapping
from typing import Any

from registry.records.quantities import amount
from runners.reports.plots import finish, save
from runners.reports.results import title
from runners.scaling.page import by_budget, curve, sizes_of
from tasks.storage.files import Place


def draw(file: Place, summary: Mapping[str, Any]) -> None:
    """Writes the plot; a star marks the lowest point of each parabola."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, (budget, rows) in enumerate(by_budget(summary)):
        color, sizes = f"C{number}", [row["parameters"] for row in rows]
        left.plot(sizes, [row["loss"] for row in rows], "o", ms=4, color=color, label=f"{budget:.3g} FLOPs")
        if (found := curve(summary, budget, (sizes[0], sizes[-1]))) is not None:
            left.plot(*found, lw=1.4, color=color)
    for each in summary["parabolas"]:
        if each["parameters"] is not None:
            left.plot(each["parameters"], each["loss"], "*", ms=13, color="black")
    sizes = sizes_of(summary)
    left.set_xscale("log")
    left.set_xticks(sizes, [amount(size) for size in sizes])
    left.set_xticks([], minor=True)
    left.set_title("validation loss at equal FLOPs", fontsize=10, loc="left")
    left.set_xlabel("parameters")
    left.set_ylabel("validation loss (nats per token)")
    known = [row for row in summary["rows"] if row.get("error") is not None]
    for held_out, label in ((False, "fitted"), (True, "held out")):
        rows = [row for row in known if row["held_out"] == held_out]
        marks = {"marker": "D" if held_out else "o", "ms": 6 if held_out else 4, "ls": "", "label": label}
        if rows:
            right.plot([row["predicted"] for row in rows], [row["loss"] for row in rows], **marks)
    if known:
        ends = [end([row["loss"] for row in known]) for end in (min, max)]
        right.plot(ends, ends, lw=1, color="gray")
    right.set_title("the law and the runs", fontsize=10, loc="left")
    figure.suptitle(title(summary), fontsize=10)
    right.set_xlabel("loss of the law")
    right.set_ylabel("loss of the run")
    finish((left, right))
    save(file, figure)
