"""Golden files: reviewed records of all experiments, by section, and plans of their small forms."""

import importlib.metadata
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from layers.errors import UsageError, did_you_mean
from registry.experiment import Experiment, cls_key, declared_value
from registry.records.diff import differing_figures
from registry.records.snapshot import snapshot
from registry.tool import plans, totals
from registry.values import show
from tasks.storage.files import write_whole

FOLDER = Path(__file__).parents[2] / "tests" / "golden"

# knobs: those whose values differ from the template's; config: without specs, which `weights` and `activations` hold.
RECORD = ("knobs", "config", "activations", "mesh", "weights", "totals")
PLAN = "plan"  # of the small form, in a file of its own
SECTIONS = (*RECORD, PLAN)
SHOWN = 5  # differences in a message


def compare(
    experiment: Experiment,
    *,
    update: bool = False,
    sections: Collection[str] = SECTIONS,
    plan: plans.Plan | None = None,
) -> dict[str, Any]:
    """Compares sections of an experiment with its golden files, or writes them: `{name, ok, reason}`.

    Writing also updates registry/totals.json. A plan holds for one version of the compiler: with another it is not
    compared, and the reason names both.

    Args:
      experiment: the experiment.
      update: write the files.
      sections: names in SECTIONS.
      plan: the plan of its small form, if it is known; otherwise the small form is compiled.
    Raises:
      UsageError: a section is unknown.
    """
    for section in sections:
        if section not in SECTIONS:
            raise UsageError(f"Unknown section '{section}' of golden files. {did_you_mean(section, SECTIONS)}")
    name = cls_key(type(experiment))
    rows = []
    if parts := [section for section in sections if section != PLAN]:
        rows.append(_compare_record(experiment, parts, update=update))
    if PLAN in sections:
        rows.append(_compare_plan(experiment, plan, update=update))
    return {"name": name, "ok": all(ok for ok, _ in rows), "reason": "; ".join(filter(None, (of for _, of in rows)))}


def _compare_record(experiment: Experiment, sections: Collection[str], *, update: bool) -> tuple[bool, str]:
    name = cls_key(type(experiment))
    path = FOLDER / f"{name}.json"
    now = _record(experiment)
    before = json.loads(path.read_text()) if path.exists() else None
    if update:
        others = {} if before is None else {key: before[key] for key in RECORD if key not in sections}
        content = {**now, **others}
        _write(path, content)
        totals.store(name, content["totals"])
        return True, f"written to {path.name}"
    if before is None:
        return False, f"has no golden file ({_hint(name)})"
    changed = [f"{section}.{key}" for section in sections for key in _changed(before[section], now[section])]
    if not changed:
        return True, ""
    return False, f"differs from its golden file in {', '.join(changed[:SHOWN])} ({_hint(name)})"


def _compare_plan(experiment: Experiment, plan: plans.Plan | None, *, update: bool) -> tuple[bool, str]:
    name, compiler = cls_key(type(experiment)), importlib.metadata.version("jaxlib")
    path, hint = _plan_file(name), _hint(name, f" --sections={PLAN}")
    if update:
        _write(path, {"experiment": name, "jaxlib": compiler, "plan": plan or plans.small_plan(experiment)})
        return True, f"written to {path.name}"
    before = stored_plan(experiment)
    if before is None:
        return False, f"has no golden plan ({hint})"
    if before["jaxlib"] != compiler:
        return True, f"its plan was not compared: {path.name} is of jaxlib {before['jaxlib']} (got {compiler})"
    now = plan or plans.small_plan(experiment)
    found = differing_figures([before["plan"], now])
    changed = [f"{figure} ({_figure(a)} -> {_figure(b)})" for figure, (a, b) in found.items()]
    if not changed:
        return True, ""
    more = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
    return False, f"its plan differs from its golden file in {', '.join(changed[:SHOWN])}{more} ({hint})"


def stored_plan(experiment: Experiment) -> dict[str, Any] | None:
    """Returns the content of an experiment's golden plan: `{experiment, jaxlib, plan}`; None without the file."""
    path = _plan_file(cls_key(type(experiment)))
    return json.loads(path.read_text()) if path.exists() else None


def _plan_file(name: str) -> Path:
    return FOLDER / f"{name}.plan.json"


def _figure(value: Any) -> str:
    return "absent" if value is None else f"{value:,}" if isinstance(value, int | float) else str(value)


def _hint(name: str, sections: str = "") -> str:
    return f"review it, then run `python -m registry golden {name}{sections} --update`"


def _write(path: Path, content: Any) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(content, indent=1) + "\n")


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
