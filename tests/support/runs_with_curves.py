"""Run folders for tests of pages: a real record, metrics by formula, no training."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from registry.records.snapshot import snapshot
from registry.resolve import resolve

RECORDS: dict[tuple[str, ...], dict[str, Any]] = {}  # by settings, made once


def record_of(*sets: str) -> dict[str, Any]:
    """The record of a small experiment with settings."""
    if sets not in RECORDS:
        RECORDS[sets] = {**snapshot(resolve("tiny.StdlibTiny", list(sets), smoke=True)), "doc": "A small model."}
    return json.loads(json.dumps(RECORDS[sets]))


def metrics(steps: int, level: float = 2.0, *, every: int = 1, flops: bool = True) -> list[dict[str, Any]]:
    """Lines of training every few steps at 2 steps a second, and of validation every 10 steps."""
    lines = []
    for step in range(every, steps + 1, every):
        loss = level + 3 * math.exp(-step / 20) + 0.1 * math.sin(step)
        scalars = {"loss": loss, "bits_per_byte": loss / math.log(2), "learning_rate": 0.003, "grad_norm": 1 + 1 / step}
        scalars |= {"tokens_seen": 256 * step, "tokens_per_second": 512.0, "steps_per_second": 2.0}
        scalars |= {"flops": 1000 * step} if flops else {}
        lines.append({"step": step, "split": "train", **scalars, "router_load_max": 1 + loss})
        if step % 10 == 0:
            lines.append({"step": step, "split": "validation", "loss": loss + 0.1, "bits_per_byte": loss / math.log(2)})
    return lines


def run_folder(
    folder: Path,
    *sets: str,
    lines: list[dict[str, Any]] | None = None,
    sample: str = "",
    changes: Mapping[str, Any] | None = None,
) -> Path:
    """Writes a run folder; `changes` replace keys of its record."""
    folder.mkdir(parents=True)
    record = {**record_of(*sets), **(changes or {})}
    (folder / "experiment.json").write_text(json.dumps(record))
    made = metrics(60) if lines is None else lines
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in made))
    if sample:
        (folder / "samples").mkdir()
        (folder / "samples" / "00000060-seed0.txt").write_text(sample)
    return folder
