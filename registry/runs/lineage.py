"""The lineage of a run: the runs and files that its weights come from, recorded when they were taken."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layers.errors import UsageError
from registry.records.provenance import short_digest
from registry.runs.run import Run
from tasks.storage.files import is_remote, place

Ancestor = dict[str, Any]
DEEPEST = 100  # ancestors that are followed; more are a circle of run folders


def lineage(run: Run) -> list[Ancestor]:
    """Returns a run and its ancestors, the nearest first.

    Each has `run` or `file` (where it is), `entry`, `step` (at which its weights were taken; None for the run itself),
    `by` (how: "warm start", "growth from 4 to 8 layers", "import of a Llama folder"), `found` (whether it is still
    there) and `changed` (whether its config is another one now).

    Raises:
      UsageError: the record of the run cannot be read.
    """
    found = [_of(run)]
    here: Run | None = run
    while here is not None and (parent := here.record.get("parent")) and len(found) < DEEPEST:
        if "file" in parent:
            found.append(_file(parent))
            break
        source = _source(here, parent)
        there = source.problem is None
        found.append(
            {
                "run": parent["workdir"],
                "entry": source.entry if there else parent.get("experiment"),
                "step": parent["step"],
                "by": _by(here, source if there else None, parent),
                "found": there,
                "changed": there and _changed(source, parent),
            }
        )
        here = source if there else None
    return found


def _source(child: Run, parent: Mapping[str, Any]) -> Run:
    """Returns the run that a child's weights come from.

    A relative name is searched in the working folder, then in the folders that contain the child.
    """
    names = [name for name in (parent.get("path"), parent["workdir"]) if name]
    if not is_remote(child.folder) and not is_remote(parent["workdir"]):
        names += [str(above / parent["workdir"]) for above in Path(child.folder).absolute().parents]
    runs = []
    for name in names:
        try:
            runs.append(Run(place(name)))
        except UsageError:  # a store that this machine cannot read
            continue
    found = next((run for run in runs if run.problem is None), None)
    return found or Run(Path(parent["workdir"]))


def _of(run: Run) -> Ancestor:
    return {"run": run.name, "entry": run.entry, "step": None, "by": None, "found": True, "changed": False}


def _file(parent: Mapping[str, Any]) -> Ancestor:
    by = f"import of {parent['format']} weights"
    try:
        found = place(parent["file"]).exists()
    except UsageError:  # a store that this machine cannot read
        found = False
    return {"file": parent["file"], "entry": None, "step": None, "by": by, "found": found, "changed": False}


def _by(child: Run, source: Run | None, parent: Mapping[str, Any]) -> str:
    """Returns how a run took the weights of another one."""
    if parent.get("branch"):
        return "branch"
    what = "warm start with its optimizer" if parent.get("optimizer") else "warm start"
    if source is None:
        return what
    old, new = (run.knobs.get("NUM_LAYERS") for run in (source, child))
    return f"{what}, grown from {old} to {new} layers" if old != new and old and new else what


def _changed(source: Run, parent: Mapping[str, Any]) -> bool:
    """Returns whether a run has another config than when its weights were taken."""
    digest = lambda config: short_digest(json.dumps(config, sort_keys=True).encode())
    # The record was read with the names of then: as it is written, or as an earlier version had written it.
    return parent.get("fingerprint") not in (None, digest(source.record["config"]), digest(source.snapshot["config"]))
