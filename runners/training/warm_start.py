"""Warm starts: a run begins with initial weights, or with those of another run, with layers repeated to grow depth."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from layers.errors import UsageError, first_line
from registry.records.snapshot import load
from runners.session import Session
from runners.training.checkpoints import FOLDER, Checkpoints, path_name, require_checkpoints
from runners.training.history import EXPERIMENT, parent_run
from runners.training.workdir import vocabulary_record
from tasks.batch import empty_batch
from tasks.programs import WarmStart
from tasks.storage.files import place
from tasks.train_step import TrainState, state_of
from tasks.weight_table import WeightTable

Shapes = dict[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Origin:
    """The origin of weights taken from another run."""

    sentence: str  # a description to print
    parent: dict[str, Any]  # the record of the other run, for experiment.json


def begin(session: Session) -> tuple[TrainState, Origin | None]:
    """Returns the state before the first update, created with its shardings, and the origin of its weights if any.

    Step, metrics, learning-rate schedule and data are those of a new run in any case.

    Raises:
      UsageError: the other run lacks the checkpoint, or its weights do not fit.
    """
    warm = session.train.warm_start
    if warm is None:
        return session.functions.init(), None
    wanted = _wanted(session, warm)
    step, stored = _find(session, warm)
    placed = lambda path, leaf: jax.ShapeDtypeStruct(stored[path_name(path)], leaf.dtype, sharding=leaf.sharding)
    abstract = jax.tree_util.tree_map_with_path(placed, wanted)
    source = Checkpoints(place(warm.workdir), read_only=True, processes=session.processes)
    old = source.restore_part(step, abstract)
    source.close()
    # One program: only the old arrays and the new state are in memory, and both are sharded over the mesh.
    state = jax.jit(functools.partial(_grown, session), out_shardings=session.abstract.state_shardings)(old)
    grown = {(was[0], leaf.shape[0]) for path, leaf in _leaves(wanted) if (was := stored[path]) != leaf.shape}
    layers = "".join(f", {before} layers grown to {after}" for before, after in sorted(grown))
    what = "Weights and optimizer" if warm.optimizer else "Weights"
    sentence = f"{what} from {warm.workdir} (step {step}){layers}"
    return state, Origin(sentence, parent_run(warm.workdir, step) | {"optimizer": warm.optimizer})


def check_warm_start(session: Session, workdir: str, *, allow_changes: bool = False) -> None:
    """Checks the warm start of a new run before its folder is created.

    Raises:
      UsageError: the other run lacks the checkpoint, its weights do not fit, or its vocabulary differs.
    """
    folder = place(workdir) / FOLDER
    resumes = folder.is_dir() and any(path.name.isdigit() for path in folder.iterdir())
    if session.train.warm_start is not None and not resumes:
        _find(session, session.train.warm_start)
        _check_vocabulary(session, session.train.warm_start.workdir, allow_changes)


def _check_vocabulary(session: Session, other: str, allow_changes: bool) -> None:
    """Raises a UsageError if both runs are trained on text with different vocabularies."""
    learned = load(place(other)).get("vocabulary") if (place(other) / EXPERIMENT).exists() else None
    ours = vocabulary_record(session.experiment)
    if not learned or not ours or learned["fingerprint"] == ours["fingerprint"]:
        return
    if not (ours["is_text"] and learned.get("is_text", True)):  # records of older runs lack is_text
        return
    message = (
        f"WARM_START = {other} has the tokens of {learned['is']} (fingerprint {learned['fingerprint'][:8]}), and this "
        f"run those of {ours['is']} ({ours['fingerprint'][:8]})."
    )
    if not allow_changes:
        raise UsageError(f"{message} Set VOCABULARY and VOCABULARY_PATH as there, or add --allow_changes.")
    print(f"{message} Continuing because of --allow_changes.")


def _find(session: Session, warm: WarmStart) -> tuple[int, Shapes]:
    """Returns the step of the other run's checkpoint and the shapes of its arrays, checked to fit this experiment."""
    where = f"WARM_START = {warm.workdir}"
    try:
        require_checkpoints(warm.workdir)
        source = Checkpoints(place(warm.workdir), read_only=True, processes=session.processes)
        step = source.find(warm.checkpoint)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    try:
        stored = source.stored_shapes(step)
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"{where}: checkpoint {step} cannot be read: {first_line(error)}. Choose another.") from error
    source.close()
    _check(f"{where} (step {step})", stored, _wanted(session, warm), session.task.weight_table())
    return step, stored


def _wanted(session: Session, warm: WarmStart) -> dict[str, Any]:
    """Returns the parts of the state to take, with the shapes and shardings of the new state."""
    state = session.abstract.state
    return {"variables": state.variables} | ({"optimizer": state.optimizer} if warm.optimizer else {})


def _check(where: str, stored: Shapes, wanted: Any, table: WeightTable) -> None:
    """Raises a UsageError unless every array exists and has this experiment's shape, except for fewer layers."""
    named = dict(_leaves(wanted))
    slot = lambda path: path.startswith("optimizer/")
    fresh = lambda path: " Set WARM_START_OPTIMIZER=false to begin with a fresh optimizer." if slot(path) else ""
    taken = (path for path in stored if path.partition("/")[0] in wanted)
    for path in sorted({*taken, *named}, key=lambda path: (slot(path), path)):
        name = path.removeprefix("variables/")
        if path not in named:
            raise UsageError(f"{where} has {name}, {_size(stored[path])}, which this experiment lacks.{fresh(path)}")
        have, want, layers = stored.get(path), tuple(named[path].shape), _layer_dims(path, table)
        if have is None:
            raise UsageError(f"{where} lacks {name}, which is {_size(want)} here.{fresh(path)}")
        if len(have) != len(want) or have[layers:] != want[layers:]:
            raise UsageError(
                f"{where} does not fit this experiment. {name} is {_size(have)} there and {_size(want)} here; only the "
                f"number of layers may differ."
            )
        if any(old > new for old, new in zip(have, want, strict=True)):
            raise UsageError(
                f"{where} has more layers than this experiment. {name} is {_size(have)} there and {_size(want)} here."
            )


def _layer_dims(path: str, table: WeightTable) -> int:
    """Returns the number of leading dimensions of a weight, or of its optimizer slot, that index layers."""
    of = [row for row in table if f"/{row.path.removeprefix('params/')}/" in f"/{path}/"]
    return max(of, key=lambda row: len(row.path)).stacked if of else 0


def _grown(session: Session, old: dict[str, Any]) -> TrainState:
    """Returns the state of the new run with the old arrays, grown in depth."""
    variables = jax.tree.map(_grow, old["variables"], session.abstract.state.variables)
    # The optimizer state is initialized from these weights, because it may hold copies of them.
    state = state_of(session.task, variables, empty_batch(session.train.input.batch_size, 1))
    if "optimizer" not in old:
        return state
    # The schedule starts with the new run: its count stays at zero.
    schedule = lambda part: isinstance(part, optax.ScaleByScheduleState)
    take = lambda new, was: new if schedule(new) else _grow(was, new)
    return state.replace(optimizer=jax.tree.map(take, state.optimizer, old["optimizer"], is_leaf=schedule))


def _grow(old: jax.Array, new: jax.Array) -> jax.Array:
    """Returns an array grown in depth (Rae et al. 2021, Gopher, appendix G.3.3).

    Layer j of n is the old layer floor(j * old / n).
    """
    for dim, (before, after) in enumerate(zip(old.shape, new.shape, strict=True)):
        if before != after:
            old = jnp.take(old, np.arange(after) * before // after, axis=dim)
    return old


def _leaves(tree: Any) -> list[tuple[str, Any]]:
    return [(path_name(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def _size(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "a number"
