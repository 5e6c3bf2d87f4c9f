"""Result files: one JSON line per finished run, appended at once, so that an interrupted sweep can resume."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from layers.errors import UsageError
from registry.experiment import Experiment
from registry.records.snapshot import flat_config
from tasks.storage import files
from tasks.storage.files import Place
from tasks.storage.jsonl import append_line, read_lines

Key = dict[str, Any]


def experiment_hash(experiment: Experiment) -> str:
    """Hash of the complete config, which excludes the mesh: 16 hexadecimal digits."""
    first, *others = (flat_config(phase) for phase in experiment.phases)
    config = [first, *others] if others else first
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


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
    """Returns the experiment's name with its overrides, as on a command line, and the phase that a plan is of."""
    sets = "".join(f" --set={override}" for override in record["overrides"])
    phase = f", phase {record['phase']}" if "phase" in record else ""
    return f"{record['experiment']}{' --smoke' if record['smoke'] else ''}{sets}{phase}"


class Results:
    """Lines of a result file; each has the key of its case, and a result."""

    def __init__(self, file: Place):
        self.file = file
        self.lines = list(read_lines(file))  # a case with a truncated line runs again

    def find(self, key: Key) -> dict[str, Any] | None:
        """Returns the last result with `key`, or None."""
        fits = lambda line: all(line.get(name) == value for name, value in key.items())
        return next((line for line in reversed(self.lines) if fits(line)), None)

    def add(self, key: Key, result: dict[str, Any]) -> dict[str, Any]:
        """Appends a result; returns its line."""
        self.lines.append(append_line(self.file, {**key, **result}))
        return self.lines[-1]
