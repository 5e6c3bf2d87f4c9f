"""Rows of `registry list`, and the patterns that select them."""

import fnmatch
import math
from collections.abc import Iterable, Sequence
from typing import Any

from layers.errors import UsageError, did_you_mean
from registry import index
from registry.tool.totals import Totals

Row = dict[str, Any]


def matching(keys: Sequence[str], pattern: str) -> list[str]:
    """Returns the keys that match a pattern, ignoring case: with `*`, `?` or `[`, keys that match it completely or
    whose class name does; otherwise keys that contain it.

    Raises:
      UsageError: no key matches.
    """
    lowered, is_glob = pattern.lower(), any(character in pattern for character in "*?[")
    if is_glob:
        found = [key for key in keys if any(fnmatch.fnmatchcase(name.lower(), lowered) for name in _names(key))]
    else:
        found = [key for key in keys if lowered in key.lower()]
    if not found:
        families = {key.rpartition(".")[0] for key in keys}
        near = {name for key in keys for name in _names(key)} | {f"{name}.*" if is_glob else name for name in families}
        raise UsageError(f"No experiment matches '{pattern}'. {did_you_mean(pattern, near)}")
    return found


def _names(key: str) -> tuple[str, str]:
    return key, key.rpartition(".")[2]


def entry(key: str, totals: Totals | None) -> Row:
    """Returns one row; parameters and bytes are None if the totals are not known."""
    if key in index.entries():
        found = index.entries()[key]
        row = {"name": key, "base": found.base, "doc": found.doc, "mesh": list(found.mesh), "meshes": found.meshes}
    else:
        from registry.experiment import REGISTRY, doc_line

        cls = REGISTRY[key]
        doc = doc_line(cls)
        row = {"name": key, "base": cls.__bases__[0].__name__, "doc": doc, "mesh": list(cls.DEVICE_MESH_SHAPE)}
        row["meshes"] = dict(cls().machine_meshes)
    return with_figures(row, row["mesh"], totals)


def with_figures(row: Row, mesh: Iterable[int], totals: Totals | None) -> Row:
    """Returns the row with its figures; a -1 in the mesh counts as one device."""
    figures = {key: None if totals is None else totals[key] for key in ("parameters", "bytes")}
    return {**row, "mesh": list(mesh), **figures, "devices": math.prod(max(size, 1) for size in mesh)}
