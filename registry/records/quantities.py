"""Counts, bytes, durations and meshes and machines as text; the parts of a plan's peak."""

from collections.abc import Mapping, Sequence
from typing import Any

CLOCK = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def amount(number: int) -> str:
    """Formats a count in four digits: 820.4 k, 137.7 B."""
    return _in_units(number, 1000, ("", " k", " M", " B", " T"))


def size(number: int) -> str:
    """Formats bytes in binary units, four digits."""
    return _in_units(number, 1024, (" B", " KiB", " MiB", " GiB", " TiB"))


def _in_units(number: int, base: int, units: Sequence[str]) -> str:
    """Formats the number in the largest unit in which it rounds to at least 1: 999,999 is 1 M, not 1000 k."""
    power = 0
    while power < len(units) - 1 and abs(float(_digits(number, base**power))) >= base:
        power += 1
    return f"{_digits(number, base**power)}{units[power]}"


def _digits(number: int, unit: int) -> str:
    return str(number) if unit == 1 else f"{number / unit:.4g}"


def duration(seconds: float) -> str:
    """Formats a time in its two largest units; below a minute in seconds.

    >>> duration(0.25), duration(45), duration(3_723)
    ('0.2 s', '45 s', '1 h 2 min')
    """
    rest, parts = int(seconds), []
    for size, unit in CLOCK:
        if rest >= size and len(parts) < 2:
            parts.append(f"{rest // size} {unit}")
            rest %= size
        elif parts:
            break  # 1 h 5 s is 1 h
    return " ".join(parts) or f"{seconds:.1f} s"


def peak_parts(memory: Mapping[str, int]) -> dict[str, int]:
    """Splits a plan's peak of bytes per device into weights, optimizer, gradients, and the rest, if a peak is known."""
    shares = {name: memory[name] for name in ("weights", "optimizer", "gradients")}
    if "peak" in memory:
        rest = memory["peak"] - memory["weights"] - memory["optimizer"]
        shares["gradients"] = min(memory["gradients"], rest)
        shares["activations and other"] = rest - shares["gradients"]
    return shares


def hardware_text(plan: Mapping[str, Any]) -> str:
    """Formats what a plan was compiled for: `h100:8x8`, or `virtual CPU devices, chip v3`."""
    return plan["topology"] or f"virtual CPU devices{', chip ' + plan['chip'] if plan['chip'] else ''}"


def mesh_text(mesh: Mapping[str, int]) -> str:
    """Formats a mesh: `data=2 model=4`."""
    return " ".join(f"{axis}={n}" for axis, n in mesh.items())
