"""Weight tables on pages of runs and plans; frame, tables and style are those of registry.pages.page."""

from typing import Any

from registry.pages.page import cards, image, page, script_data, table, text, write_assets
from registry.tool import render

__all__ = ["cards", "image", "page", "script_data", "table", "text", "weights", "write_assets"]


def weights(data: dict[str, Any]) -> str:
    """Returns the weight table of a snapshot, and its totals."""
    totals = data["totals"]
    held, slots = (render.size(totals[f"{kind}bytes_per_device"]) for kind in ("", "optimizer_"))
    summary = (
        f"<p>{totals['parameters']:,} parameters; per device {held} of weights and {slots} of optimizer state.</p>"
    )
    return summary + table(render.WEIGHT_COLUMNS, map(render.weight_cells, data["weights"]), render.WEIGHT_NUMBERS)
