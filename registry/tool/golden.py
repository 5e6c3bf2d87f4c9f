"""Golden files: reviewed records of all experiments, by section."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from layers.errors import UsageError, did_you_mean
from registry.experiment import Experiment, cls_key, declared_value
from registry.records.snapshot import snapshot
from registry.tool import totals
from registry.values import show
from tasks.storage.files import write_whole

FOLDER = Path(__file__).parents[2] / "tests" / "golden"

# knobs: those whose values differ from the template's; config: without specs, which `weights` and `activations` hold.
SECTIONS = ("knobs", "config", "activations", "mesh", "weights", "totals")


def compare(experiment: Experiment, *, update: bool = False, sections: Collection[str] = SECTIONS) -> dict[str, Any]:
    """Compares sections of an experiment with its golden file, or writes them: `{name, ok, reason}`.

    Writing also updates registry/totals.json.

    Raises:
      UsageError: a section is unknown.
    """
    for section in sections:
        if section not in SECTIONS:
            raise UsageError(f"Unknown section '{section}' of golden files. {did_you_mean(section, SECTIONS)}")
    name = cls_key(type(experiment))
    path = FOLDER / f"{name}.json"
    now = _record(experiment)
    before = json.loads(path.read_text()) if path.exists() else None
    if update:
        others = {} if before is None else {key: before[key] for key in SECTIONS if key not in sections}
        content = {**now, **others}
        FOLDER.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(content, indent=1) + "\n")
        totals.store(name, content["totals"])
        return {"name": name, "ok": True, "reason": f"written to {path.name}"}
    hint = f"review it, then run `python -m registry golden {name} --update`"
    if before is None:
        return {"name": name, "ok": False, "reason": f"has no golden file ({hint})"}
    changed = [f"{section}.{key}" for section in sections for key in _changed(before[section], now[section])]
    if not changed:
        return {"name": name, "ok": True, "reason": ""}
    return {"name": name, "ok": False, "reason": f"differs from its golden file in {', '.join(changed[:5])} ({hint})"}


def _record(experiment: Experiment) -> dict[str, Any]:
    """Returns what a golden file holds of an experiment."""
    cls, full = type(experiment), snapshot(experiment)
    specs = {path: value for path, value in full["config"].items() if _is_spec(path)}
    knobs = {name: show(value) for name, value in cls.knobs().items() if value != declared_value(cls, name)}
    return {
        "experiment": full["experiment"],
        "knobs": knobs,
        "config": {path: value for path, value in full["config"].items() if path not in specs},
        "activations": {path.rpartition(".")[2]: value for path, value in specs.items()},
        "mesh": full["mesh"],
        "weights": {row.pop("path"): row for row in full["weights"]},
        "totals": full["totals"],
    }


def _is_spec(path: str) -> bool:
    """Returns whether a config path is a row of a spec table."""
    return {"activations", "batch_placement"} & set(path.split(".")[:-1]) != set()


def _changed(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    return [key for key in {**before, **now} if before.get(key) != now.get(key)]
