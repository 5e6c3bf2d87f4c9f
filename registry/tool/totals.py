"""Totals of registered experiments, kept in the user's cache folder: parameters and bytes without jax.

The cache is one file, totals.json: {key: {name: totals}}. A key is a hash of everything that totals follow from: the
source text of layers, tasks and registry, and the versions of Python and of the libraries that make weights. So figures
of a changed class are never shown; they are computed again when a condition asks for them. Experiments of other
packages are not kept, because what their weights follow from is not known.
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

Totals = dict[str, int]  # "parameters", "bytes" and so on: registry.snapshot.weight_summary

PACKAGES = ("layers", "tasks", "registry")
LIBRARIES = ("fiddle", "flax", "jax", "numpy", "optax")
KEPT = 8  # versions of the code whose totals stay in the file


class TotalsCache:
    """Totals by name: those of the cache file, and those computed here.

    Args:
      compute: the totals of an experiment; may take a quarter of a second.
      is_stored: reads and writes the cache file. False for experiments that are not as registered.
    """

    def __init__(self, compute: Callable[[str], Totals], *, is_stored: bool = True):
        self._compute = compute
        self._key = source_key() if is_stored else ""
        self._found: dict[str, Totals] = _read().get(self._key, {}) if is_stored else {}
        self._new: dict[str, Totals] = {}

    def known(self, name: str) -> Totals | None:
        """The totals of an experiment; None where they would have to be computed."""
        return self._found.get(name)

    def of(self, name: str) -> Totals:
        """The totals of an experiment, computed where they are not known."""
        if name not in self._found:
            if not self._new and self._key and sys.stderr.isatty():
                print("Computing totals, once for each version of the code ...", file=sys.stderr, flush=True)
            self._found[name] = self._compute(name)
            if self._key and _is_ours(name):
                self._new[name] = self._found[name]
        return self._found[name]

    def save(self) -> None:
        """Adds what was computed to the cache file; a file that cannot be written stays as it is."""
        if not self._new:
            return
        from tasks.storage.files import write_whole  # needs libraries that `list` does without

        kept = _read()  # another process may have added some
        own = {**kept.pop(self._key, {}), **self._new}
        kept = dict(list(kept.items())[1 - KEPT :])
        try:
            file = _file()
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, json.dumps({**kept, self._key: own}) + "\n")
        except (OSError, RuntimeError):
            return


def source_key() -> str:
    """Digits that stand for everything that totals follow from."""
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
    """Raises RuntimeError where the user has no home folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "vortaro" / "totals.json"


def _read() -> dict[str, dict[str, Totals]]:
    """What the cache file holds; nothing where there is none, or not one of ours."""
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
