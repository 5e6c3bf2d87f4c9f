"""Draws docs/figures/weight_table.png: the path of a weight from --exp to a placed array.

python docs/figures/draw_weight_table.py
"""

from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

STEPS = (
    ("--exp=tiny.StdlibTiny", "registry.resolve.resolve", "a class, its knobs and --set"),
    ("Task()", "registry/templates/decoder.py", "a Fiddle config; each layer gets\nthe rows it lists in SPECS"),
    ("task", "registry.build.build", "Flax modules; nothing is allocated"),
    ('weight("ffn_in_mf", ...)', "layers.weights.weight", "shape, role, fan-in and spec\nin one place"),
    ("weight table", "tasks.weight_table", "one row per weight, from an\nabstract initialization"),
    (
        "optimizer, muP, ZeRO, planner",
        "tasks.optimizers, tasks.zero",
        "read rows: rates, decay, slots,\nspecs of gradients and slots",
    ),
    ("placed array", "runners.session.Session", "initialized on its devices by\nthe row's NamedSharding"),
)


def draw() -> Figure:
    """Returns the figure."""
    figure = Figure(figsize=(9, 6.4))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 9), ylim=(-0.2, len(STEPS)))
    axes.axis("off")
    for number, (title, place, text) in enumerate(STEPS):
        y = len(STEPS) - 1 - number
        axes.add_patch(
            FancyBboxPatch((0.3, y + 0.12), 3.1, 0.58, boxstyle="round,pad=0.06", fc="#eef3f8", ec="#4a6f94")
        )
        axes.text(1.85, y + 0.41, title, ha="center", va="center", fontsize=11, family="monospace")
        axes.text(3.75, y + 0.41, place, va="center", fontsize=9, family="monospace", color="#8a4b08")
        axes.text(6.35, y + 0.41, text, va="center", fontsize=9.5)
        if y:
            axes.annotate("", (1.85, y - 0.2), (1.85, y + 0.03), arrowprops={"arrowstyle": "->", "color": "#4a6f94"})
    return figure


if __name__ == "__main__":
    draw().savefig(Path(__file__).with_name("weight_table.png"), dpi=110)
