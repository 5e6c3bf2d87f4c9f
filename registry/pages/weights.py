"""The weight table of a snapshot on a page."""

from typing import Any

from registry.pages.page import table
from registry.records import weight_cells
from registry.records.quantities import size


def weights(data: dict[str, Any]) -> str:
    """Returns the weight table of a snapshot, and its totals."""
    totals = data["totals"]
    held, slots = (size(totals.get(f"{kind}bytes_per_device", 0)) for kind in ("", "optimizer_"))
    summary = (
        f"<p>{totals['parameters']:,} parameters; per device {held} of weights and {slots} of optimizer state.</p>"
    )
    return summary + table(weight_cells.COLUMNS, map(weight_cells.cells, data["weights"]), weight_cells.NUMBERS)
