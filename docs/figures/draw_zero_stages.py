"""Draws docs/figures/zero_stages.png: what one of four devices stores at each ZeRO stage.

python docs/figures/draw_zero_stages.py
"""

from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

DEVICES = 4
KINDS = (("weights", 4, "#4a6f94"), ("gradients", 4, "#c98a3c"), ("optimizer slots", 8, "#7fa37f"))  # bytes per weight
STAGES = (
    ("stage 0", 0, "gradients: all-reduce"),
    ("stage 1", 1, "gradients: reduce-scatter\nnew weights: all-gather"),
    ("stage 2", 2, "gradients of each layer: reduce-scatter\nnew weights: all-gather"),
    ("stage 3", 3, "weights of each layer: all-gather, twice\ngradients of each layer: reduce-scatter"),
)
SPLIT_FROM = {"weights": 3, "gradients": 2, "optimizer slots": 1}
UNIT = 0.36  # width of a byte per weight


def draw() -> Figure:
    """Returns the figure."""
    figure = Figure(figsize=(9, 3.9))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 11.2), ylim=(-0.25, len(STAGES) + 0.75))
    axes.axis("off")
    x = 1.0
    for kind, size, color in KINDS:
        axes.add_patch(Rectangle((x, len(STAGES) + 0.22), 0.22, 0.22, fc=color, ec="none"))
        axes.text(x + 0.32, len(STAGES) + 0.33, f"{kind}, {size} bytes", va="center", fontsize=10)
        x += 2.4
    for number, (title, stage, exchange) in enumerate(STAGES):
        y = len(STAGES) - 1 - number
        axes.text(0.15, y + 0.4, title, va="center", fontsize=11)
        x = 1.0
        total = 0.0
        for kind, size, color in KINDS:
            stored = size / DEVICES if stage >= SPLIT_FROM[kind] else size
            axes.add_patch(Rectangle((x, y + 0.12), stored * UNIT, 0.56, fc=color, ec="white"))
            x += stored * UNIT
            total += stored
        axes.text(x + 0.1, y + 0.4, f"{total:g} bytes", va="center", fontsize=10, color="#8a4b08")
        axes.text(7.75, y + 0.4, exchange, va="center", fontsize=9.5)
    axes.text(
        1.0, -0.12, f"bytes per weight on one of {DEVICES} devices, float32 and Adam", fontsize=9.5, color="#555555"
    )
    return figure


if __name__ == "__main__":
    draw().savefig(Path(__file__).with_name("zero_stages.png"), dpi=110)
