"""The run folder: what was run, with which versions, and whether today's experiment is still the same."""

import contextlib
import fcntl
import importlib.metadata
import io
import json
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from layers.errors import UsageError
from registry import render
from registry.build import build, to_json
from registry.diff import diff
from registry.experiment import Experiment
from registry.overrides import ROOTS
from registry.snapshot import Snapshot, flat_config, load, snapshot
from runners import lease
from runners.peers import peers
from tasks.storage import Place, make_folder, place, write_whole

EXPERIMENT = "experiment.json"
# Where weights live, and how long to wait for them, is no part of what is learned: a run goes on with others.
NOT_LEARNED = ("DEVICE_MESH_SHAPE", "ZERO_STAGE", "ZERO_AXIS", "STEP_TIMEOUT")
# Neither is how long and how often: a run may be made longer, and log, evaluate and save at other steps.
CADENCE = ("NUM_STEPS", "LOG_EVERY", "EVAL_EVERY", "SAVE_EVERY")
CADENCE_PATHS = tuple(f"train.{name}" for name in ("num_steps", "log_every", "eval_every", "save_every", "keep_"))
NOT_LEARNED_PATHS = ("task.zero", "train.step_timeout", *CADENCE_PATHS)
DECAY = "task.optimizer.schedule.decay_steps"  # follows NUM_STEPS unless DECAY_STEPS is set
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "fiddle", "numpy")


def vocabulary_record(experiment: Experiment) -> dict[str, Any] | None:
    """What the run folder keeps of the vocabulary: what it is, and its fingerprint; None for tasks without one.

    Raises:
      UsageError: its files cannot be read.
    """
    config = getattr(experiment.Task(), "vocabulary", None)
    if config is None:
        return None
    vocabulary = build(config, "task.vocabulary")
    return {"is": vocabulary.describe(), "fingerprint": vocabulary.fingerprint, "is_text": vocabulary.is_text}


def require_same_vocabulary(path: str, experiment: Experiment, *, allow_changes: bool = False) -> None:
    """Finds out whether a vocabulary's files are those that the run in a folder has learned with, if there is one.

    Settings that name another vocabulary are `open_workdir`'s to refuse.

    Raises:
      UsageError: they cannot be read, or other ones lie under the same name.
    """
    if not (place(path) / EXPERIMENT).exists():
        return
    before = load(place(path))
    learned, now = before.get("vocabulary"), vocabulary_record(experiment)
    if not learned or not now or learned["fingerprint"] == now["fingerprint"]:
        return
    if _vocabulary_settings(before["config"]) != _vocabulary_settings(flat_config(experiment)):
        return
    said = (
        f"{now['is']} is no longer the vocabulary that the run in '{path}' has learned with (fingerprint "
        f"{now['fingerprint'][:8]} now, {learned['fingerprint'][:8]} then)"
    )
    if not allow_changes:
        raise UsageError(f"{said}: put the old file back, or choose another --workdir.")
    print(f"{said}; going on, as --allow_changes says.")


def open_workdir(
    path: str, experiment: Experiment, mesh: dict[str, int], *, allow_changes: bool = False, record: bool = True
) -> Place:
    """Makes the folder or goes on in it; writes down the experiment, unless not to `record` it.

    Raises:
      UsageError: it cannot be written to, or holds a run of another experiment (the difference is printed).
    """
    folder = place(path)
    peers().in_turn(lambda: _open(folder, experiment, mesh, allow_changes, record))
    if record:
        peers().require_shared(folder)
    return folder


def _open(folder: Place, experiment: Experiment, mesh: dict[str, int], allow_changes: bool, record: bool) -> None:
    now = {**snapshot(experiment, mesh), "vocabulary": vocabulary_record(experiment)}
    try:
        make_folder(folder)
        if (folder / EXPERIMENT).exists():
            _refuse_changes(folder, now, allow_changes)
        if not record:
            return
        write_whole(folder / EXPERIMENT, json.dumps({**now, **_provenance(experiment)}, indent=1) + "\n")
        for name, show in (("experiment.txt", render.experiment), ("weights.txt", render.weights)):
            text = io.StringIO()
            show(now, render.console(text))
            write_whole(folder / name, text.getvalue())
    except OSError as error:
        raise _unwritable(folder, error) from error


def _unwritable(folder: Place, error: OSError) -> UsageError:
    return UsageError(f"The workdir '{folder}' cannot be written: {error.strerror or error}. Choose another --workdir.")


@contextlib.contextmanager
def sole_use(workdir: Place) -> Iterator[None]:
    """Makes the folder; inside, no other run may train in it. The system lets go of the lock when this process dies.

    Process 0 holds it for all of a run's.

    Raises:
      UsageError: another process has it, or it cannot be written to.
    """
    if not peers().primary:
        yield
        return
    if not isinstance(workdir, Path):
        with lease.held(workdir):
            yield
        return
    try:
        make_folder(workdir)
        lock = (workdir / ".lock").open("w")
    except OSError as error:
        raise _unwritable(workdir, error) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"Another process trains in '{workdir}': wait for it, or choose another --workdir."
            ) from error
        except OSError as error:  # Lustre without flock, NFS without locks
            print(f"Nothing keeps other runs out of '{workdir}': its file system has no locks ({error.strerror}).")
        yield


def recorded(path: str) -> Snapshot:
    """What a run folder says was run in it.

    Raises:
      UsageError: it is no run folder.
    """
    if not (place(path) / EXPERIMENT).exists():
        raise UsageError(
            f"'{path}' is no run folder (it has no {EXPERIMENT}): give --exp=NAME, or the workdir of a run."
        )
    return load(place(path))


def _vocabulary_settings(config: Mapping[str, str]) -> dict[str, str]:
    return {path: value for path, value in config.items() if path.startswith("task.vocabulary")}


def _is_name(path: str) -> bool:
    """Whether a config path holds the name that a vocabulary is found by."""
    return path.endswith((".vocabulary.path", ".vocabulary.name"))


def _refuse_changes(folder: Place, now: Snapshot, allow_changes: bool) -> None:
    before = load(folder)
    difference = diff(before, now)
    changed = {row["knob"] for row in difference["knobs"]}
    knobs = [row for row in difference["knobs"] if row["knob"] not in (*NOT_LEARNED, *CADENCE)]
    difference["config"] = [row for row in difference["config"] if not row["path"].startswith(NOT_LEARNED_PATHS)]
    decay = next((row for row in difference["config"] if row["path"] == DECAY), None)
    if decay is not None and "NUM_STEPS" in changed and "DECAY_STEPS" not in changed:
        difference["config"].remove(decay)
        print(f"The learning rate now decays until step {decay['b']} (it did until step {decay['a']}).")
    other = before["experiment"] != now["experiment"]
    learned, has = before.get("vocabulary"), now["vocabulary"]
    if learned and has and learned["fingerprint"] == has["fingerprint"]:  # the same, whatever it is found under
        knobs = [row for row in knobs if row["knob"] != "VOCABULARY_PATH"]
        difference["config"] = [row for row in difference["config"] if not _is_name(row["path"])]
    if not (knobs or difference["config"] or other):
        return
    render.difference(difference)
    if allow_changes:
        print("Going on with these changes, as --allow_changes says.")
        return
    what = f"another experiment, {before['experiment']}" if other else "this experiment with other settings"
    raise UsageError(
        f"The workdir '{folder}' holds a run of {what} (the difference is above): choose another --workdir, or "
        f"--allow_changes to go on with it."
    )


def _provenance(experiment: Experiment) -> dict[str, Any]:
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {
        "doc": (type(experiment).__doc__ or "").strip().partition("\n")[0],
        "fiddle": {root: json.loads(to_json(getattr(experiment, method)())) for root, method in ROOTS.items()},
        "versions": {"python": platform.python_version(), **versions},
    }
