"""Rows of the weight table as text, for the terminal and for pages."""

from typing import Any

from registry.records.quantities import size

COLUMNS = (
    "weight",
    "shape",
    "dtype",
    "spec",
    "role",
    "init",
    "std",
    "method",
    "rate",
    "decay",
    "bytes",
    "per device",
    "slots",
)
NUMBERS = ("shape", "std", "rate", "bytes", "per device", "slots")


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """Formats one row of the weight table, under COLUMNS."""
    return (
        row["path"].removeprefix("params/"),
        "x".join(map(str, row["shape"])),
        row["dtype"],
        row["spec"],
        row["role"],
        row["init"],
        f"{row['stddev']:.4g}",
        row.get("method", ""),  # records of earlier versions have neither a method nor slots
        f"{row['rate']:.4g}",
        "yes" if row["decay"] else "no",
        size(row["bytes"]),
        size(row["bytes_per_device"]),
        size(row["slot_bytes_per_device"]) if "slot_bytes_per_device" in row else "",
    )
