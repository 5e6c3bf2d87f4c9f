"""Phases of a run as text, for the terminal and for pages."""

from collections.abc import Mapping
from typing import Any

from registry.records.quantities import amount

COLUMNS = ("phase", "updates", "rows", "positions", "tokens", "learning rate", "sets")
NUMBERS = ("phase", "rows", "positions", "tokens")


def cells(number: int, phase: dict[str, Any]) -> tuple[str, ...]:
    """Returns the cells of a phase under COLUMNS; `phase` is an item of registry.records.phases.phase_records."""
    first, last = phase["updates"]
    tokens = (last - first + 1) * phase["rows"] * phase["positions"]
    begins, ends = (f"{rate:.3g}" for rate in phase["learning_rate"])
    return (
        str(number),
        f"{first:,} to {last:,}",
        f"{phase['rows']:,}",
        f"{phase['positions']:,}",
        amount(tokens),
        begins if begins == ends else f"{begins} to {ends}",
        ", ".join(f"{knob} = {value}" for knob, value in phase["knobs"].items()),
    )


def table_cells(record: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Returns the rows of the table of phases of a snapshot; empty without phases."""
    return [cells(number, phase) for number, phase in enumerate(record.get("phases", ()))]


def sentence(number: int, phases: list[dict[str, Any]]) -> str | None:
    """Returns a phase in words, for differences; None without a phase of that number."""
    if number >= len(phases):
        return None
    _, updates, rows, positions, _, rate, knobs = cells(number, phases[number])
    return f"updates {updates}, {rows} x {positions}, learning rate {rate}{f', {knobs}' if knobs else ''}"
