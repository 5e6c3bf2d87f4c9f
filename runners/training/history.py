"""The history of a run in its experiment.json: what made the folder, and each start of training in it."""

import argparse
import dataclasses
import datetime
import json
from collections.abc import Mapping
from typing import Any

import jax
from absl import logging

from registry import provenance
from registry.experiment import Experiment
from registry.snapshot import load
from runners.processes.coordination import peers
from runners.session import Session
from tasks.storage.files import Place, place, write_whole

EXPERIMENT = "experiment.json"
FIRST = ("versions", "code", "command", "parent", "starts")  # what later starts leave as it is


@dataclasses.dataclass(frozen=True)
class Start:
    """A command that works in a run folder."""

    command: tuple[str, ...] = ()  # as it was typed
    modules: tuple[str, ...] = ()  # names of modules whose code counts: those of --import, and the experiment's

    def made(self) -> dict[str, Any]:
        """The command, the code and the versions of packages."""
        return {"command": list(self.command), **provenance.made_now(self.modules)}


def start_of(options: argparse.Namespace, experiment: Experiment) -> Start:
    """The start that a command line asks for."""
    return Start(tuple(options.command), (*options.imports, type(experiment).__module__))


def first_record(before: Mapping[str, Any] | None, start: Start, parent: Mapping[str, Any] | None) -> dict[str, Any]:
    """What made a run folder: of the record that it holds, or of this start if it holds none."""
    if before is not None:
        return {key: before[key] for key in FIRST if key in before}
    return {**start.made(), "parent": parent, "starts": []}


def record_start(
    workdir: Place, session: Session, start: Start, *, step: int, parent: Mapping[str, Any] | None = None
) -> None:
    """Adds a start of training to the run folder's experiment.json; process 0 does.

    Args:
      workdir: the folder, with its experiment.json.
      session: the experiment on its devices.
      start: the command.
      step: where training begins or resumes.
      parent: the run that weights come from, if this is the start that takes them.
    """
    if not peers().primary:
        return
    record = load(workdir)
    devices = jax.devices()
    entry = {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "step": step,
        **start.made(),
        **{key: record[key] for key in ("experiment", "smoke", "overrides")},
        "data": _data(session),
        "devices": {"count": len(devices), "kind": devices[0].device_kind, "processes": jax.process_count()},
    }
    record["starts"] = [*record.get("starts", []), entry]
    if parent is not None:
        record["parent"] = parent
    write_whole(workdir / EXPERIMENT, json.dumps(record, indent=1) + "\n")
    logging.info("Started at step %d by %s with the code %s", step, list(start.command), entry["code"])


def _data(session: Session) -> dict[str, dict[str, str | None]]:
    """The data that training reads: what they are, and their fingerprints, None where there are none."""
    inputs = {"train.input": session.train.input}
    if "validation" in session.test.inputs:
        inputs["test.inputs.validation"] = session.test.inputs["validation"]
    return {name: {"is": source.describe(), "fingerprint": source.fingerprint} for name, source in inputs.items()}


def parent_run(workdir: str, step: int) -> dict[str, Any]:
    """The run that weights are taken from, as a run folder records it.

    Its `fingerprint` changes with its config, its `code` is that of its last start. Both are missing if the folder
    holds checkpoints only.
    """
    folder = place(workdir)
    if not (folder / EXPERIMENT).exists():
        return {"workdir": workdir, "step": step}
    stored = load(folder)
    made = provenance.made_by(stored) or {"code": None}
    config = json.dumps(stored["config"], sort_keys=True).encode()
    return {
        "workdir": workdir,
        "step": step,
        "experiment": stored["experiment"],
        "overrides": stored["overrides"],
        "fingerprint": provenance.short_digest(config),
        "code": made["code"],
    }
