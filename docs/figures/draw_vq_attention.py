"""Draws docs/figures/vq_attention.png: which keys one query of Transformer-VQ attends to, and how.

python docs/figures/draw_vq_attention.py
"""

from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

COLORS = ("#4a6f94", "#c98a3c", "#7fa37f", "#a06a8c")  # of the codes
CODES = (0, 2, 1, 0, 3, 2, 2, 0, 1, 3, 0, 2, 1, 1, 0, 3)  # of the keys, oldest first
WINDOW = 5
SIZE = 0.46


def draw() -> Figure:
    """Returns the figure."""
    figure = Figure(figsize=(9, 3.6))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 9), ylim=(0, 3.6))
    axes.axis("off")
    left, top = 0.45, 2.45
    older = len(CODES) - WINDOW
    places = [left + i * SIZE + (0.35 if i >= older else 0) for i in range(len(CODES))]
    for x, code in zip(places, CODES, strict=True):
        axes.add_patch(Rectangle((x, top), SIZE * 0.86, SIZE * 0.86, fc=COLORS[code], ec="none"))
    axes.text(left, top + 0.82, "older keys; every key is its nearest codeword (color)", fontsize=10)
    axes.text(places[older], top + 0.82, "the last MEMORY_LEN keys", fontsize=10)
    axes.text(places[-1] + 0.55, top + 0.2, "query", va="center", fontsize=10, family="monospace")

    for code, color in enumerate(COLORS):
        x, count = 0.6 + code * 1.3, CODES[:older].count(code)
        axes.add_patch(FancyBboxPatch((x, 0.95), 0.9, 0.62, boxstyle="round,pad=0.06", fc="#eef3f8", ec="#4a6f94"))
        axes.add_patch(Rectangle((x + 0.06, 1.14), 0.24, 0.24, fc=color, ec="none"))
        axes.text(x + 0.36, 1.26, f"{count} keys\nmean v", va="center", fontsize=8.5)
        for i in range(older):
            if CODES[i] == code:
                axes.plot((places[i] + 0.2, x + 0.45), (top - 0.04, 1.67), color=color, lw=0.8, alpha=0.7)
    middle = places[older] + WINDOW * SIZE / 2
    axes.annotate("", (middle, 1.0), (middle, top - 0.08), arrowprops={"arrowstyle": "->", "color": "#4a6f94"})
    axes.text(
        0.55,
        0.4,
        "cache: one term per code, exp(score) times count;\nsize and cost do not depend on the length",
        va="center",
        fontsize=10,
    )
    axes.text(middle, 0.7, "window: one term per key,\nwith its own position", ha="center", va="center", fontsize=10)
    return figure


if __name__ == "__main__":
    draw().savefig(Path(__file__).with_name("vq_attention.png"), dpi=110)
