"""Result files: one JSON line per finished run, appended at once, so that an interrupted sweep can resume."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from layers.errors import UsageError
from registry.experiment import Experiment
from registry.snapshot import flat_config
from tasks.storage import files
from tasks.storage.files import Place, append

Key = dict[str, Any]


def experiment_hash(experiment: Experiment) -> str:
    """Hash of the complete config, which excludes the mesh: 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(flat_config(experiment), sort_keys=True).encode()).hexdigest()[:16]


def make_folder(folder: Place) -> None:
    """Creates the folder of the results.

    Raises:
      UsageError: it cannot be created.
    """
    try:
        files.make_folder(folder)
    except OSError as error:
        raise UsageError(f"The folder '{folder}' for results cannot be created: {error.strerror}.") from error


def title(record: Mapping[str, Any]) -> str:
    """Returns the experiment's name with its overrides, as on a command line."""
    sets = "".join(f" --set={override}" for override in record["overrides"])
    return f"{record['experiment']}{' --smoke' if record['smoke'] else ''}{sets}"


def read_lines(file: Place) -> Iterator[dict[str, Any]]:
    """Yields the objects of a file of JSON lines, which may be missing; skips lines truncated by a crash."""
    if not file.exists():
        return
    for line in file.read_text().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def finite(value: Any) -> Any:
    """Replaces numbers that are not finite with None, also in containers, because JSON lacks infinity and NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


class Results:
    """Lines of a result file; each has the key of its case, and a result."""

    def __init__(self, file: Place):
        self.file = file
        self.lines = list(read_lines(file))  # a case with a truncated line runs again
        self.torn = file.exists() and not f"\n{file.read_text()}".endswith("\n")

    def find(self, key: Key) -> dict[str, Any] | None:
        """Returns the last result with `key`, or None."""
        fits = lambda line: all(line.get(name) == value for name, value in key.items())
        return next((line for line in reversed(self.lines) if fits(line)), None)

    def add(self, key: Key, result: dict[str, Any]) -> dict[str, Any]:
        """Appends a result; returns its line."""
        line = json.loads(json.dumps({**key, **result}))
        append(self.file, ("\n" if self.torn else "") + json.dumps(line) + "\n")
        self.torn = False
        self.lines.append(line)
        return line
