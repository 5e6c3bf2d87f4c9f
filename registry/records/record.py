"""Records of experiments in files: experiment.json of run folders, golden files, output of `show --json`. No jax."""

from collections.abc import Iterable, Mapping
from typing import Any

from layers.errors import UsageError, first_line
from registry.earlier.renamed import with_todays_knobs, with_todays_names
from registry.records.fields import Record
from tasks.storage.files import Place
from tasks.storage.json_values import parsed, require_type

Snapshot = dict[str, Any]  # an experiment as plain data: registry.records.snapshot.snapshot makes one
EXPERIMENT = "experiment.json"  # the record of a run folder
NEEDED = ("smoke", "config", "weights", "totals", "mesh")  # in addition to the keys that all commands need
_TEMPLATES = ("templates.", "registry.experiment.")  # owners of knobs that an experiment leaves as they are


def load(path: Place) -> Snapshot:
    """Returns the snapshot in a file, or in a run folder's experiment.json.

    Raises:
      UsageError: it does not exist, or cannot be read.
    """
    file = path / EXPERIMENT if path.is_dir() else path
    if not file.exists():
        raise UsageError(f"'{path}' is not a run folder (it has no {EXPERIMENT}). Give the --workdir of a run.")
    try:
        return of_text(with_todays_names(file.read_text()), str(file), needed=NEEDED)
    except (OSError, ValueError) as error:
        raise UsageError(f"'{file}' cannot be read as an experiment: {first_line(error)}.") from error


def of_text(text: str, name: str, needed: Iterable[str] = ()) -> Snapshot:
    """Returns the record in the text of a file, with current names of knobs.

    Args:
      text: the content of the file.
      name: the name of the file.
      needed: keys that it must have besides `experiment`, `knobs` and `overrides`.

    Raises:
      ValueError: it is not JSON, lacks a key, or has a value of another type.
    """
    loaded = parsed(text)
    if not isinstance(loaded, dict) or not {"experiment", "knobs", "overrides", *needed} <= loaded.keys():
        raise ValueError("it does not contain an experiment")
    record = _with_texts(loaded)
    require_type(record, Record, "the record")
    try:
        return with_todays_knobs(record, name)
    except (ValueError, SyntaxError, KeyError, IndexError, TypeError) as error:
        raise ValueError(f"its knobs of an earlier version cannot be translated ({first_line(error)})") from error


def _with_texts(loaded: Snapshot) -> Snapshot:
    """Returns a snapshot printed by `show --json` with texts as values; other snapshots are unchanged."""
    if "config_text" not in loaded:
        return loaded
    text = lambda knob: {**knob, "value": knob.get("text")} if isinstance(knob, dict) else knob
    knobs = {name: text(knob) for name, knob in loaded["knobs"].items()} if isinstance(loaded["knobs"], dict) else None
    return {**loaded, "knobs": knobs, "config": loaded["config_text"]}


def own_knobs(knobs: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Returns the knobs that the experiment or its family sets, of a record's knobs: {name: {value, owner}}."""
    return [name for name, knob in knobs.items() if not knob["owner"].startswith(_TEMPLATES)]


def made_by(stored: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns code and versions of a run's last start, with its numbers of starts and of distinct code states.

    None if unknown: for experiments that are not runs, and runs of older versions.
    """
    starts = stored.get("starts") or [stored]
    if "code" not in starts[-1]:
        return None
    kinds = {str(start.get("code")) for start in starts}
    last = {key: starts[-1].get(key, {}) for key in ("code", "versions")}
    return {**last, "starts": len(stored.get("starts", [])), "kinds": len(kinds)}


def checkout_text(code: Mapping[str, Any] | None) -> str:
    """Returns a checkout in one text: `0.1.0, commit 1a2b3c4d5e6f with changes, digest 0123456789ab`; `-` for None."""
    if code is None:
        return "-"
    commit = f"commit {code['commit'][:12]}{' with changes' if code['dirty'] else ''}" if code["commit"] else None
    return ", ".join(filter(None, (code.get("version"), commit, f"digest {code['digest']}")))
