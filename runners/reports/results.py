"""Results of many runs in one file, a JSON line each, appended as they come: what was stopped goes on."""

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
    """Sixteen digits that stand for the whole config, wherever its arrays live."""
    return hashlib.sha256(json.dumps(flat_config(experiment), sort_keys=True).encode()).hexdigest()[:16]


def make_folder(folder: Place) -> None:
    """Makes the folder that results go to, before anything is computed for them."""
    try:
        files.make_folder(folder)
    except OSError as error:
        raise UsageError(f"'{folder}' cannot be made a folder for results: {error.strerror}.") from error


def title(said: Mapping[str, Any]) -> str:
    """An experiment, and whatever makes it differ from the registered one, as on a command line."""
    sets = "".join(f" --set={override}" for override in said["overrides"])
    return f"{said['experiment']}{' --smoke' if said['smoke'] else ''}{sets}"


def read_lines(file: Place) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines, which need not be there; a line that a crash cut short is left out."""
    if not file.exists():
        return
    for line in file.read_text().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def finite(value: Any) -> Any:
    """The value with None for numbers that are not finite, also within: JSON has no infinity or NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


class Results:
    """The lines of a file: each has a key, which says of what case it is, and a result."""

    def __init__(self, file: Place):
        self.file = file
        self.lines = list(read_lines(file))  # a case whose line was cut off by a kill is done again
        self.torn = file.exists() and not f"\n{file.read_text()}".endswith("\n")

    def find(self, key: Key) -> dict[str, Any] | None:
        """The last result under `key`."""
        fits = lambda line: all(line.get(name) == value for name, value in key.items())
        return next((line for line in reversed(self.lines) if fits(line)), None)

    def add(self, key: Key, result: dict[str, Any]) -> dict[str, Any]:
        """Appends a result; returns its line."""
        line = json.loads(json.dumps({**key, **result}))
        append(self.file, ("\n" if self.torn else "") + json.dumps(line) + "\n")
        self.torn = False
        self.lines.append(line)
        return line
