"""Plots as PNG files: the look that the axes of all share, and writing."""

import io
from collections.abc import Iterable
from typing import Any

from tasks.storage.files import Place, write_whole


def finish(axes: Iterable[Any]) -> None:
    """Gives axes a faint grid, no frame above and on the right, and a legend if they have lines."""
    for axis in axes:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        if axis.lines:
            axis.legend(frameon=False, fontsize=9)


def save(file: Place, figure: Any, *, dpi: int = 110) -> None:
    """Writes a figure of matplotlib as PNG."""
    picture = io.BytesIO()
    figure.savefig(picture, dpi=dpi)
    write_whole(file, picture.getvalue())
