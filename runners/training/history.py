"""The history of a run in its experiment.json: the command that created the folder, and each start of training."""

import argparse
import dataclasses
import datetime
import json
import time
from collections.abc import Mapping
from typing import Any

import jax
from absl import logging

from registry.experiment import Experiment
from registry.records import provenance
from registry.records.record import EXPERIMENT, load, made_by
from registry.runs.folders import NON_FINITE
from registry.runs.state import last_change
from runners.session import Session
from tasks.storage.files import Place, absolute, place, write_whole

DIED = "died"  # the reason of an end without notice
FIRST = ("versions", "code", "command", "parent", "starts")  # keys that later starts do not change


@dataclasses.dataclass(frozen=True)
class Start:
    """A command that uses a run folder."""

    command: tuple[str, ...] = ()  # the command line
    began: float = dataclasses.field(default_factory=time.time)  # time of the command, in seconds since 1970
    modules: tuple[str, ...] = ()  # modules whose code is recorded: those of --import, and the experiment's

    def made(self) -> dict[str, Any]:
        """Returns the command, a digest of the code and the package versions."""
        return {"command": list(self.command), **provenance.made_now(self.modules)}


def start_of(options: argparse.Namespace, experiment: Experiment) -> Start:
    """Returns the start of a command line."""
    times = {"began": options.began} if "began" in options else {}  # only the runner trains
    modules = (*options.imports, type(experiment).__module__)
    return Start(command=tuple(options.command), modules=modules, **times)


def first_record(before: Mapping[str, Any] | None, start: Start, parent: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the creation record of a run folder: the existing one, or a new one of this start."""
    if before is not None:
        return {key: before[key] for key in FIRST if key in before}
    return {**start.made(), "parent": parent, "starts": []}


def record_start(
    workdir: Place, session: Session, start: Start, *, step: int, parent: Mapping[str, Any] | None = None
) -> None:
    """Adds a start of training to the run folder's experiment.json, in process 0; removes the cause of an earlier stop.

    Args:
      workdir: the folder, with its experiment.json.
      session: the experiment on its devices.
      start: the command.
      step: the step at which training begins or resumes.
      parent: the run that the initial weights come from, if any.
    """
    if not session.processes.primary:
        return
    (workdir / NON_FINITE).unlink(missing_ok=True)
    record = load(workdir)
    devices = jax.devices()
    entry = {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "step": step,
        **start.made(),
        **{key: record[key] for key in ("experiment", "smoke", "overrides")},
        "data": _data(session),
        "ended": None,
        "devices": {"count": len(devices), "kind": devices[0].device_kind, "processes": jax.process_count()},
    }
    earlier = record.get("starts", [])
    if earlier and earlier[-1].get("ended", ...) is None:  # killed; the metrics file is replaced after this
        died = last_change(workdir)
        at = None if died is None else datetime.datetime.fromtimestamp(died, datetime.UTC).isoformat(timespec="seconds")
        earlier[-1]["ended"] = {"at": at, "step": step, "reason": DIED}
    record["starts"] = [*earlier, entry]
    if parent is not None:
        record["parent"] = parent
    write_whole(workdir / EXPERIMENT, json.dumps(record, indent=1) + "\n")
    logging.info("Started at step %d by %s with the code %s", step, list(start.command), entry["code"])


def record_end(workdir: Place, session: Session, *, step: int, reason: str) -> None:
    """Adds to the last start in experiment.json how it ended, in process 0; a killed start has none.

    Args:
      workdir: the folder.
      session: the experiment on its devices.
      step: the last step, which is saved.
      reason: "finished", or the name of the signal that stopped it.
    """
    if not session.processes.primary:
        return
    record = load(workdir)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    record["starts"][-1]["ended"] = {"at": now, "step": step, "reason": reason}
    write_whole(workdir / EXPERIMENT, json.dumps(record, indent=1) + "\n")


def _data(session: Session) -> dict[str, dict[str, str | None]]:
    """Returns the description and fingerprint (None if unknown) of each input of training."""
    inputs = {"train.input": session.train.input}
    if "validation" in session.test.inputs:
        inputs["test.inputs.validation"] = session.test.inputs["validation"]
    return {name: {"is": source.describe(), "fingerprint": source.fingerprint} for name, source in inputs.items()}


def parent_run(workdir: str, step: int) -> dict[str, Any]:
    """Returns the record of the run that weights are taken from.

    Its `fingerprint` is a digest of its config, its `code` that of its last start. Both are missing if the folder
    has only checkpoints.
    """
    folder = place(workdir)
    if not (folder / EXPERIMENT).exists():
        return {"workdir": workdir, "step": step}
    stored = load(folder)
    made = made_by(stored) or {"code": None}
    config = json.dumps(stored["config"], sort_keys=True).encode()
    return {
        "workdir": workdir,
        "path": str(absolute(folder)),
        "step": step,
        "experiment": stored["experiment"],
        "overrides": stored["overrides"],
        "fingerprint": provenance.short_digest(config),
        "code": made["code"],
    }
