"""The run folder: its record of experiment and versions, its lock, and the check that the experiment is unchanged."""

import contextlib
import io
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from layers.errors import UsageError
from registry.build import build, config_of, to_json
from registry.experiment import Experiment, doc_line
from registry.overrides import METHODS
from registry.records.diff import diff
from registry.records.record import EXPERIMENT, Snapshot, load
from registry.records.snapshot import flat_config, snapshot, with_todays_fields
from registry.runs.folders import LOCK
from registry.runs.state import last_saved
from registry.tool import render
from runners.processes.coordination import ProcessGroup
from runners.training.history import Start, first_record
from tasks.storage import lease
from tasks.storage.files import Place, make_folder, place, write_whole
from tasks.storage.locks import locked

# A run can resume with other values of these: the sharding of weights, time limits, the intervals of logging,
# evaluation and saving, evaluation tasks, and the number of steps do not change what is learned.
NOT_LEARNED = (
    *("MESH_AXES", "DEVICE_MESH_SHAPE", "DCN_MESH_SHAPE", "MESHES", "DEVICE_ORDER", "LAYOUT", "WEIGHTS", "ACTIVATIONS"),
    *("SEQUENCE_AXIS", "STACK", "PIPELINE_REPEATS", "PIPELINE_MICROBATCHES", "ZERO_STAGE", "ZERO_AXIS", "STEP_TIMEOUT"),
    *("WEIGHT_METRICS", "LOG_EVERY", "EVAL_EVERY", "SAVE_EVERY", "KEEP_EVERY", "SAVE_MINUTES", "NUM_STEPS"),
    *("REPLAY_EVERY", "EVAL_TASKS", "EVAL_TASK_PATH", "EVAL_LIMIT", "EVAL_FEWSHOT"),
)
NOT_LEARNED_PATHS = (
    *(
        "task.zero",
        "train.weight_metrics",
        "train.step_timeout",
        "train.replay_every",
        "train.log_every",
        "train.eval_every",
        "train.save_every",
    ),
    *("train.keep_last", "train.keep_best", "train.keep_every", "train.save_minutes", "train.num_steps", "test.tasks"),
)
TEST = "test"  # path of the class that Test() builds, which depends on whether there are tasks
TOKENIZER = "tokenizer"  # folder of a run folder with the files of an imported tokenizer
LENGTH = "NUM_STEPS"
PHASES = "train.input."  # may depend on the number of steps, in a run with phases
SCHEDULE = "task.optimizer.schedule."  # may depend on the number of steps


def vocabulary_record(experiment: Experiment) -> dict[str, Any] | None:
    """Returns the run folder's record of the vocabulary (description, fingerprint); None for tasks without one.

    Raises:
      UsageError: the files of the vocabulary cannot be read.
    """
    config = getattr(config_of(experiment, "task"), "vocabulary", None)
    if config is None:
        return None
    vocabulary = build(config, "task.vocabulary")
    return {"is": vocabulary.describe(), "fingerprint": vocabulary.fingerprint, "is_text": vocabulary.is_text}


def require_same_vocabulary(path: str, experiment: Experiment, *, allow_changes: bool = False) -> None:
    """Checks that the vocabulary's files have not changed since the run in a folder, if any, began.

    `open_workdir` refuses settings that name another vocabulary.

    Raises:
      UsageError: the files cannot be read, or have changed under the same name.
    """
    if not (place(path) / EXPERIMENT).exists():
        return
    before = load(place(path))
    learned, now = before.get("vocabulary"), vocabulary_record(experiment)
    if not learned or not now or learned["fingerprint"] == now["fingerprint"]:
        return
    if _vocabulary_settings(before["config"]) != _vocabulary_settings(flat_config(experiment)):
        return
    message = (
        f"{now['is']} has changed since the run in '{path}' began (fingerprint {now['fingerprint'][:8]} now, "
        f"{learned['fingerprint'][:8]} then)."
    )
    if not allow_changes:
        raise UsageError(f"{message} Restore the old file, or choose another --workdir.")
    print(f"{message} Continuing because of --allow_changes.")


def require_shared_vocabulary(
    where: str, other: str, experiment: Experiment, advice: str, allow_changes: bool = False
) -> None:
    """Checks that the run in the folder `other` and an experiment, if both have text, have one vocabulary.

    Args:
      where: the setting that names the other run, with which the message begins.
      advice: what to do, with which it ends.
    Raises:
      UsageError: they differ, and that is not allowed.
    """
    learned = load(place(other)).get("vocabulary") if (place(other) / EXPERIMENT).exists() else None
    ours = vocabulary_record(experiment)
    if not learned or not ours or learned["fingerprint"] == ours["fingerprint"]:
        return
    if not (ours["is_text"] and learned.get("is_text", True)):  # records of older runs lack is_text
        return
    message = (
        f"{where} has the tokens of {learned['is']} (fingerprint {learned['fingerprint'][:8]}), and this "
        f"run those of {ours['is']} ({ours['fingerprint'][:8]})."
    )
    if not allow_changes:
        raise UsageError(f"{message} {advice}")
    print(f"{message} Continuing because of --allow_changes.")


def open_workdir(
    path: str,
    experiment: Experiment,
    mesh: dict[str, int],
    *,
    allow_changes: bool = False,
    record: bool = True,
    start: Start | None = None,
    parent: Mapping[str, Any] | None = None,
    processes: ProcessGroup | None = None,
) -> Place:
    """Creates the folder or opens an existing one; writes the experiment into it unless `record` is false.

    Args:
      path: the folder.
      experiment: the experiment that runs in it.
      mesh: axis sizes on the available devices.
      allow_changes: accept a folder of another experiment.
      record: write experiment.json.
      start: the command; a new folder records it.
      parent: the run or file that weights come from; a new folder records it.
      processes: the processes of the run; None if this one runs alone.
    Raises:
      UsageError: it cannot be written to, or holds a run of another experiment (the difference is printed).
    """
    folder = place(path)
    processes = processes or ProcessGroup()
    processes.run_in_first(lambda: _open(folder, experiment, mesh, allow_changes, record, start or Start(), parent))
    if record:
        processes.require_shared(folder)
    return folder


def _open(
    folder: Place,
    experiment: Experiment,
    mesh: dict[str, int],
    allow_changes: bool,
    record: bool,
    start: Start,
    parent: Mapping[str, Any] | None,
) -> None:
    now = {**snapshot(experiment, mesh), "vocabulary": vocabulary_record(experiment)}
    try:
        make_folder(folder)
        before = load(folder) if (folder / EXPERIMENT).exists() else None
        if before is not None:
            changes = _refuse_changes(folder, before, now, experiment, allow_changes)
            if record and changes:
                print(f"Changed since the last start: {changes}.", flush=True)
        if not record:
            return
        written = {**now, **_resolved(experiment), **first_record(before, start, parent)}
        write_whole(folder / EXPERIMENT, json.dumps(written, indent=1) + "\n")
        for name, show in (("experiment.txt", render.experiment), ("weights.txt", render.weights)):
            text = io.StringIO()
            show(now, render.console(text))
            write_whole(folder / name, text.getvalue())
    except OSError as error:
        raise _unwritable(folder, error) from error


def _unwritable(folder: Place, error: OSError) -> UsageError:
    return UsageError(f"The workdir '{folder}' cannot be written: {error.strerror or error}. Choose another --workdir.")


@contextlib.contextmanager
def sole_use(workdir: Place, processes: ProcessGroup | None = None) -> Iterator[None]:
    """Creates the folder and locks it inside the context, so that no other run trains in it.

    Process 0 holds the lock for all processes of the run. The system releases it when the process dies.

    Raises:
      UsageError: another process holds the lock, or the folder cannot be written to.
    """
    if processes is not None and not processes.primary:
        yield
        return
    if not isinstance(workdir, Path):
        with lease.held(workdir):
            yield
        return
    with contextlib.ExitStack() as held:
        try:
            make_folder(workdir)
            held.enter_context(locked(workdir / LOCK, wait=False))
        except BlockingIOError as error:
            raise UsageError(
                f"Another process trains in '{workdir}'. Wait for it, or choose another --workdir."
            ) from error
        except OSError as error:
            raise _unwritable(workdir, error) from error
        yield


def recorded(path: str) -> Snapshot:
    """Returns the experiment record of a run folder.

    Raises:
      UsageError: the folder is not a run folder.
    """
    if not (place(path) / EXPERIMENT).exists():
        raise UsageError(
            f"'{path}' is not a run folder (it has no {EXPERIMENT}). Give --exp=NAME, or the workdir of a run."
        )
    record = load(place(path))
    return {**record, "overrides": [_found(override, place(path)) for override in record["overrides"]]}


def _found(override: str, folder: Place) -> str:
    """Returns an override; one that names the run's own tokenizer, at the path of then, names it at today's path."""
    name, _, value = override.partition("=")
    _, separator, inside = value.rpartition(f"/{TOKENIZER}")
    own = f"{folder}/{TOKENIZER}{inside}"
    if name != "VOCABULARY_PATH" or not separator or place(value).exists() or not place(own).exists():
        return override
    return f"{name}={own}"


def _vocabulary_settings(config: Mapping[str, str]) -> dict[str, str]:
    return {path: value for path, value in config.items() if path.startswith("task.vocabulary")}


def is_placement(path: str) -> bool:
    """Returns whether a config path is the placement of an activation, or part of a pipeline."""
    steps = path.split(".")
    return steps[-2:-1] in (["activations"], ["batch_placement"]) or not {"pipeline", "placement"}.isdisjoint(steps)


def _is_name(path: str) -> bool:
    """Returns whether a config path is the name or file of a vocabulary."""
    return path.endswith((".vocabulary.path", ".vocabulary.name"))


def _refuse_changes(folder: Place, before: Snapshot, now: Snapshot, experiment: Experiment, allow_changes: bool) -> str:
    """Returns a summary of the changes that are always allowed; raises a UsageError for others unless allowed."""
    difference = diff(with_todays_fields(before), now)
    following = _following_length(experiment, before, folder)
    # The effect of a knob that was added or removed since is in the config.
    difference["knobs"] = [row for row in difference["knobs"] if None not in (row["a"], row["b"])]
    knobs = [row for row in difference["knobs"] if row["knob"] not in NOT_LEARNED]
    free = {row["knob"]: row for row in difference["knobs"] if row["knob"] in NOT_LEARNED}
    free |= {row["path"]: row for row in difference["config"] if row["path"] in following}
    paths = [row for row in difference["config"] if row["path"] not in (*following, TEST)]
    paths = [row for row in paths if not is_placement(row["path"])]
    difference["config"] = [row for row in paths if not row["path"].startswith(NOT_LEARNED_PATHS)]
    other = before["experiment"] != now["experiment"]
    learned, has = before.get("vocabulary"), now["vocabulary"]
    if learned and has and learned["fingerprint"] == has["fingerprint"]:  # the same content under any name
        knobs = [row for row in knobs if row["knob"] != "VOCABULARY_PATH"]
        difference["config"] = [row for row in difference["config"] if not _is_name(row["path"])]
    if not (knobs or difference["config"] or other):
        return ", ".join(f"{name} = {row['b']} (was {row['a']})" for name, row in free.items())
    render.difference(difference)
    if allow_changes:
        print("Continuing with these changes because of --allow_changes.")
        return ""
    what = f"another experiment, {before['experiment']}" if other else "this experiment with other settings"
    raise UsageError(
        f"The workdir '{folder}' holds a run of {what} (the difference is above). Choose another --workdir, or add "
        f"--allow_changes to continue it."
    )


def _moves_later_borders(experiment: Any, before: Snapshot, folder: Place) -> bool:
    """Returns whether the borders of phases that differ from those of the stored run are after its last saved step."""
    old = [phase["updates"][1] for phase in before.get("phases", [])[:-1]]
    new = itertools.accumulate(experiment.steps_of_phases) if old else []
    moved = [min(pair) for pair in zip(old, new, strict=False) if pair[0] != pair[1]]
    return not moved or (last_saved(folder) or 0) <= min(moved)


def _following_length(experiment: Experiment, before: Snapshot, folder: Place) -> list[str]:
    """Returns the config paths of schedule and phases that differ only because NUM_STEPS has changed.

    Those of phases are included if the borders that move are after the last saved step.
    """
    cls = type(experiment)
    length = before["knobs"].get(LENGTH, {}).get("value", "")
    if not length.isdecimal() or LENGTH not in cls.knobs() or cls.knobs()[LENGTH] == int(length):
        return []
    try:
        config = flat_config(cls.derive(**{LENGTH: int(length)})())
    except UsageError:  # the current settings do not allow that length
        return []
    free = (SCHEDULE, PHASES) if _moves_later_borders(experiment, before, folder) else SCHEDULE
    schedule = (path for path in before["config"] if path.startswith(free))
    return [path for path in schedule if config.get(path) == before["config"][path]]


def _resolved(experiment: Experiment) -> dict[str, Any]:
    return {
        "doc": doc_line(type(experiment)),
        "fiddle": {root: json.loads(to_json(getattr(experiment, method)())) for root, method in METHODS.items()},
    }
