"""Totals of registered experiments, cached in the user's cache folder: parameters and bytes without importing jax.

The cache is one file, totals.json: {key: {name: totals}}. A key is a hash of all inputs of the totals: the source text
of layers, tasks and registry, and the versions of Python and of the libraries that create weights. So outdated figures
of a changed class are never shown; they are recomputed when a condition needs them. Experiments of other packages are
not cached, because the inputs of their weights are unknown.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from layers.roots import FOLDER
from registry import index

Totals = dict[str, int]  # "parameters", "bytes" and so on: registry.records.snapshot.weight_summary

PACKAGES = ("layers", "tasks", "registry")
LIBRARIES = ("fiddle", "flax", "jax", "numpy", "optax")
KEPT = 8  # versions of the code whose totals remain in the file


class TotalsCache:
    """Totals by name, from the cache file or computed by this process.

    Args:
      compute: returns the totals of an experiment; may take a quarter of a second.
      is_stored: reads and writes the cache file. False for experiments changed by --set or --smoke.
    """

    def __init__(self, compute: Callable[[str], Totals], *, is_stored: bool = True):
        self._compute = compute
        self._key = source_key() if is_stored else ""
        self._found: dict[str, Totals] = _read().get(self._key, {}) if is_stored else {}
        self._new: dict[str, Totals] = {}

    def known(self, name: str) -> Totals | None:
        """Returns the totals of an experiment; None if they are not cached."""
        return self._found.get(name)

    def of(self, name: str) -> Totals:
        """Returns the totals of an experiment, computing them if needed."""
        if name not in self._found:
            if not self._new and self._key and sys.stderr.isatty():
                print("Computing totals, once for each version of the code ...", file=sys.stderr, flush=True)
            self._found[name] = self._compute(name)
            if self._key and _is_ours(name):
                self._new[name] = self._found[name]
        return self._found[name]

    def save(self) -> None:
        """Adds the computed totals to the cache file; ignores a file that cannot be written."""
        if not self._new:
            return
        from tasks.storage.files import write_whole  # needs libraries that `list` does without

        kept = _read()  # another process may have added entries
        own = {**kept.pop(self._key, {}), **self._new}
        kept = dict(list(kept.items())[1 - KEPT :])
        try:
            file = _file()
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, json.dumps({**kept, self._key: own}) + "\n")
        except (OSError, RuntimeError):
            return


def source_key() -> str:
    """Returns a hash of all inputs of the totals."""
    digest = hashlib.sha256(platform.python_version().encode())
    for library in LIBRARIES:
        digest.update(f"{library} {importlib.metadata.version(library)}\n".encode())
    for package in PACKAGES:
        for path in sorted((FOLDER / package).rglob("*.py")):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(FOLDER)} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def _is_ours(name: str) -> bool:
    return name in index.entries() and index.entries()[name].module.startswith("registry.")


def _file() -> Path:
    """Returns the path of the cache file; raises RuntimeError if the user has no home folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "vortaro" / "totals.json"


def _read() -> dict[str, dict[str, Totals]]:
    """Returns the content of the cache file; empty if it is missing or invalid."""
    try:
        content = json.loads(_file().read_text())
    except (OSError, RuntimeError, ValueError):
        return {}
    is_whole = isinstance(content, dict) and all(
        isinstance(by_name, dict) and all(map(_is_totals, by_name.values())) for by_name in content.values()
    )
    return content if is_whole else {}


def _is_totals(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and {"parameters", "bytes", "bytes_per_device", "gradient_bytes_per_device", "optimizer_bytes_per_device"}
        <= set(value)
        and all(isinstance(number, int) for number in value.values())
    )
