"""Run folders written by hand: a record, metrics and checkpoints, for tests of what reads them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

STARTED = "2026-01-01T00:00:00+00:00"
CODE = {"version": "0.1.0", "digest": "0123456789ab", "commit": "c" * 40, "dirty": False}


def lines(folder: Path, split: str | None = None) -> list[dict[str, Any]]:
    """Returns the lines of metrics.jsonl of a split; None: of all. A truncated line is an error."""
    found = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line for line in found if split in (None, line["split"])]


def record_of(
    knobs: Mapping[str, str],
    *,
    steps: int = 100,
    parent: Mapping[str, Any] | None = None,
    starts: Sequence[Mapping[str, Any]] | None = None,
    experiment: str = "tiny.StdlibTiny",
) -> dict[str, Any]:
    """Returns a record with these texts of knobs; one finished start without `starts`."""
    command = ["python", "-m", "runners.main", f"--exp={experiment}", "--workdir=a"]
    ended = {"at": "2026-01-01T00:02:00+00:00", "step": steps, "reason": "finished"}
    start = {"started": STARTED, "step": 0, "command": command, "code": {"vortaro": CODE}, "ended": ended}
    start |= {"versions": {"python": "3.11.7"}}
    config = {f"task.{name.lower()}": value for name, value in knobs.items()}
    return {
        "experiment": experiment,
        "smoke": False,
        "overrides": [],
        "knobs": {name: {"value": value, "owner": "tests"} for name, value in knobs.items()},
        "config": {**config, "train.num_steps": str(steps)},
        "weights": [],
        "totals": {"parameters": 10},
        "mesh": {"data": 1},
        "command": command,
        "parent": parent,
        "starts": [start] if starts is None else list(starts),
    }


def lines_of(losses: Mapping[int, float], *, rate: float = 2.0, tokens: int = 10) -> list[dict[str, Any]]:
    """Returns lines of training and validation at some steps: a step takes 1/rate s, has `tokens` and 100 FLOPs."""
    made = []
    for step, loss in losses.items():
        scalars = {"tokens_seen": tokens * step, "flops": 100 * step, "steps_per_second": rate}
        made.append({"step": step, "split": "train", "loss": loss + 1, **scalars})
        made.append({"step": step, "split": "validation", "loss": loss, "accuracy": 1 / (1 + loss)})
    return made


def write_run(folder: Path, record: Mapping[str, Any], lines: Iterable[Mapping[str, Any]] = (), saved: int = 0) -> Path:
    """Writes a run folder, with a checkpoint folder if `saved`; returns it."""
    folder.mkdir(parents=True)
    (folder / "experiment.json").write_text(json.dumps(record, indent=1))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if saved:
        (folder / "checkpoints" / str(saved)).mkdir(parents=True)
    return folder
