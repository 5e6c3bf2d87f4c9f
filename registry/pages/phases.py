"""The phases of a snapshot on a page."""

from collections.abc import Mapping
from typing import Any

from registry.pages.page import table
from registry.records import phase_cells


def phases(data: Mapping[str, Any]) -> str:
    """Returns the table of the phases of a snapshot; empty without phases."""
    rows = phase_cells.table_cells(data)
    return table(phase_cells.COLUMNS, rows, phase_cells.NUMBERS) if rows else ""
