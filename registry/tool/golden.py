"""Golden files: reviewed snapshots of all experiments."""

import json
from pathlib import Path
from typing import Any

from registry.diff import diff, is_equal
from registry.experiment import Experiment, cls_key
from registry.snapshot import snapshot
from tasks.storage.files import write_whole

FOLDER = Path(__file__).parents[2] / "tests" / "golden"


def compare(experiment: Experiment, *, update: bool = False) -> dict[str, Any]:
    """Compares an experiment with its golden file, or writes the file: `{name, ok, reason}`."""
    name = cls_key(type(experiment))
    path = FOLDER / f"{name}.json"
    now = snapshot(experiment)
    if update:
        FOLDER.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(now, indent=1) + "\n")
        return {"name": name, "ok": True, "reason": f"written to {path.name}"}
    hint = f"review it, then run `python -m registry golden {name} --update`"
    if not path.exists():
        return {"name": name, "ok": False, "reason": f"has no golden file ({hint})"}
    difference = diff(json.loads(path.read_text()), now)
    if is_equal(difference):
        return {"name": name, "ok": True, "reason": ""}
    changed = [row["knob"] for row in difference["knobs"]] + [row["path"] for row in difference["config"]]
    changed += [row["path"] for row in difference["weights"]]
    return {"name": name, "ok": False, "reason": f"differs from its golden file in {', '.join(changed[:5])} ({hint})"}
