"""Counts, bytes and meshes as text."""

from collections.abc import Mapping, Sequence


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


def mesh_text(mesh: Mapping[str, int]) -> str:
    """Formats a mesh: `data=2 model=4`."""
    return " ".join(f"{axis}={n}" for axis, n in mesh.items())
