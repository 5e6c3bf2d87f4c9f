"""Plot of a coordinate check: statistics of activations against width, one column per step."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from runners.reports.plots import save
from runners.reports.results import title
from runners.widths.coord_gates import HEAD_PART, LOGITS, Slopes, parts
from runners.widths.widths import rate_text
from tasks.storage.files import Place

# Color of each activation shown; lines of the first layer are solid, of the last one dashed.
COLORS = {
    "embedded": "#7f7f7f",
    "query_bsnd": "#d62728",
    "key_bskd": "#ff7f0e",
    "value_bskd": "#9467bd",
    "value_bskf": "#9467bd",
    "mixer_out": "#8c564b",
    "ffn_out": "#1f77b4",
    "residual_bsm": "#2ca02c",
    LOGITS: "#17becf",
    HEAD_PART: "#bcbd22",
}


def draw(
    file: Place, record: Mapping[str, Any], statistics: Mapping[str, Mapping[str, np.ndarray]], slopes: Slopes
) -> None:
    """Writes the plot: a column per step, sizes above, changes below, slopes in the legends."""
    from matplotlib.figure import Figure

    steps = record["steps"]
    figure = Figure(figsize=(5.2 * (steps + 1), 8.4), layout="constrained")
    axes = figure.subplots(2, steps + 1, squeeze=False, sharey="row")
    for row, kind in enumerate(("size", "change")):
        for step in range(steps + 1):
            if kind == "size" or step > 0:
                gates = {
                    g["activation"]: g["ok"] for g in record["gates"] if (g["statistic"], g["step"]) == (kind, step)
                }
                _panel(axes[row, step], record["widths"], statistics, slopes, (kind, step), gates)
    axes[1, 0].set_axis_off()
    axes[1, 0].text(0, 0.9, _legend(record), va="top", fontsize=11, transform=axes[1, 0].transAxes)
    save(file, figure, dpi=90)


def _panel(
    axis: Any,
    widths: Any,
    statistics: Mapping[str, Any],
    slopes: Slopes,
    what_when: tuple[str, int],
    gates: Mapping[str, bool],
) -> None:
    """Plots one statistic at one step; lines without a gate are pale, slopes outside their band have a !."""
    kind, step = what_when
    for name in statistics:
        slope, (layer, short) = slopes[name][kind][step], parts(name)
        if slope is None or not is_shown(name, statistics):
            continue
        style = {"color": COLORS[short], "ls": "-" if layer in (None, 0) else "--"}
        style |= {"lw": 1.5} if name in gates else {"lw": 0.8, "alpha": 0.5}
        mark = "" if gates.get(name, True) else " !"
        label = f"{slope:+.2f}{mark}  {name.rpartition('_')[0] if '_bs' in name else name}"
        axis.plot(widths, statistics[name][kind][step], marker="o", ms=3, label=label, **style)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.set_xticks(widths, [str(width) for width in widths])
    axis.tick_params(labelleft=True)
    what = "mean |x|" if kind == "size" else "mean |x - x at the start|"
    axis.set_title(f"{what} {'at the start' if step == 0 else f'after update {step}'}", fontsize=10, loc="left")
    axis.set_xlabel("width", fontsize=9)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    if axis.lines:
        place = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
        axis.legend(frameon=False, fontsize=7, title="slope", title_fontsize=7, alignment="left", **place)


def _legend(record: Mapping[str, Any]) -> str:
    outcome = "passed" if record["passed"] else "failed"
    return "\n".join(
        (
            *title(record).split(" "),
            f"parametrization: {record['parametrization']}",
            f"learning rate {rate_text(record['learning_rate'])}, {record['seeds']} seed(s)",
            f"coordinate check: {outcome}",
            "pale: no gate; !: outside its band",
        )
    )


def is_shown(name: str, statistics: Mapping[str, Any]) -> bool:
    """Returns whether an activation is plotted: those of the embedding, the logits, the first and the last layer."""
    layer, short = parts(name)
    last = max((other for other, _ in map(parts, statistics) if other is not None), default=0)
    if layer is None:
        return short in ("embedded", LOGITS, HEAD_PART)
    return short in COLORS and layer in (0, last)
