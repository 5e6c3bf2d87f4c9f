"""Branches: a run that continues from a checkpoint of another run as if its own updates had led there."""

import bisect
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from layers.errors import UsageError, errors_of
from registry.build import build
from registry.records.record import EXPERIMENT, Snapshot, load
from registry.records.snapshot import snapshot, stored_configs, with_todays_fields
from registry.runs.folders import METRICS
from registry.runs.metrics import content_of
from runners.session import Session
from runners.training.checkpoints import Checkpoints, require_checkpoints, run_and_checkpoint
from runners.training.history import parent_run
from runners.training.input_state import require_same_data
from runners.training.origins.warm_start import Origin
from runners.training.workdir import is_placement, vocabulary_record
from tasks.storage.files import Place, place, write_whole
from tasks.train_step import TrainState

SCHEDULE = "task.optimizer.schedule"


def check_branch(session: Session, source: str, *, allow_changes: bool = False) -> tuple[str, int]:
    """Returns the run folder and the step that `--branch=RUN@STEP` names, after all checks.

    Args:
      session: the new run.
      source: RUN@STEP, with a step, last or best; RUN alone is its last checkpoint.
      allow_changes: accept other updates before the step.
    Raises:
      UsageError: the checkpoint does not exist or is too late, or the other run was trained up to there in another way
        than this run would be.
    """
    folder, which = run_and_checkpoint(source)
    where = f"--branch={source}"
    with errors_of(where):
        require_checkpoints(folder)
        if not (place(folder) / EXPERIMENT).exists():
            raise UsageError(f"'{folder}' has no {EXPERIMENT}. Branch from a run folder.")
        step = Checkpoints(place(folder), read_only=True, processes=session.processes).find(which)
    if step >= session.train.num_steps:
        raise UsageError(
            f"{where} begins at step {step}, and this run ends at NUM_STEPS = {session.train.num_steps}. Raise it."
        )
    stored = with_todays_fields(load(place(folder)))
    change = _first_change(stored, session, step)
    if change and not allow_changes:
        raise UsageError(
            f"{where} needs the same updates up to step {step} in both runs ({change}). Set what differs in a phase "
            f"that begins at step {step}, or add --allow_changes."
        )
    return folder, step


def branch(
    session: Session, folder: str, step: int, workdir: Place, *, allow_changes: bool = False
) -> tuple[TrainState, dict[str, Any], Origin]:
    """Returns the state and the host's state of a checkpoint that `check_branch` has accepted, and their origin.

    Copies the metrics of the other run; those of later steps are dropped when the log of this run is opened.

    Raises:
      UsageError: the checkpoint cannot be read, or the data have changed since.
    """
    checkpoints = Checkpoints(place(folder), read_only=True, processes=session.processes)
    state, extra = checkpoints.require(session.abstract.state, str(step))
    if not allow_changes:
        require_same_data(extra["input"], session.train.input)
    if session.processes.primary:
        write_whole(workdir / METRICS, content_of(place(folder)).decode())
    return state, extra, Origin(f"Continued from {folder} (step {step})", parent_run(folder, step) | {"branch": True})


def require_branch_of(source: str, workdir: str) -> None:
    """Raises a UsageError unless the run in a folder, which has checkpoints, is a branch of the run in `source`."""
    folder, _ = run_and_checkpoint(source)
    record = load(place(workdir)) if (place(workdir) / EXPERIMENT).exists() else {}
    parent = record.get("parent") or {}
    if not parent.get("branch") or folder not in (parent["workdir"], parent.get("path")):
        raise UsageError(
            f"The workdir '{workdir}' holds a run that is not a branch of '{folder}' (--branch={source}). Choose "
            f"another --workdir, or resume the run without --branch."
        )


def _first_change(stored: Snapshot, session: Session, step: int) -> str:
    """Returns the first difference between the updates up to a step of two runs, as text; empty if there is none."""
    now, words = snapshot(session.experiment, session.mesh_shape), vocabulary_record(session.experiment)
    learned = stored.get("vocabulary")
    if learned and words and learned["fingerprint"] != words["fingerprint"]:
        there, here = (of["fingerprint"][:8] for of in (learned, words))
        return f"the vocabulary is {learned['is']} ({there}) there and {words['is']} ({here}) here"
    for update in sorted({end for record in (stored, now) for end in _ends(record) if end < step} | {step}):
        before, after = _settings(stored, update), _settings(now, update)
        for path in sorted(before.keys() | after.keys()):
            if before.get(path) != after.get(path):
                return f"{path} is {before.get(path, 'missing')} there and {after.get(path, 'missing')} here"
    old = build(stored_configs(stored)["task"], "task").optimizer.schedule
    steps = jnp.arange(step)
    theirs, ours = (np.asarray(schedule(steps)) for schedule in (old, session.task.optimizer.schedule))
    if (different := np.flatnonzero(theirs != ours)).size:
        at = int(different[0])
        return f"the learning rate of update {at + 1} is {theirs[at]:.4g} of the peak there and {ours[at]:.4g} here"
    return ""


def _ends(record: Snapshot) -> list[int]:
    """Returns the last update of each phase; empty without phases."""
    return [phase["updates"][1] for phase in record.get("phases", ())]


def _settings(record: Snapshot, update: int) -> dict[str, Any]:
    """Returns the config of the task and the input of one update, without schedule and placement.

    `train.input.first_row` becomes the first row of the update, which does not depend on where a phase begins.
    """
    config: Mapping[str, Any] = record["config"]
    prefix, begins = "train.input", 0
    if phases := record.get("phases"):
        number = min(bisect.bisect_left(_ends(record), update), len(phases) - 1)
        prefix, config = f"train.input.phases.{number}", {**config, **phases[number]["config"]}
        begins = phases[number]["updates"][0] - 1
    fixed = {path: value for path, value in config.items() if path.startswith("train.warm_start")}
    fixed["SEED"] = record["knobs"].get("SEED", {}).get("value")
    is_same = lambda path: path.startswith((SCHEDULE, "task.zero")) or is_placement(path)
    task = {path: value for path, value in config.items() if path.startswith("task") and not is_same(path)}
    is_inside = lambda path: path == prefix or path.startswith(f"{prefix}.")
    inside = {path.removeprefix(prefix): value for path, value in config.items() if is_inside(path)}
    if ".first_row" in inside:
        inside[".first_row"] = str(int(inside[".first_row"]) + (update - 1 - begins) * int(inside[".batch_size"]))
    return {**fixed, **task, **{f"train.input{path}": value for path, value in inside.items()}}
