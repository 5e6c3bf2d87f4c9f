"""The beginning of a run: initial weights, or those of another run, its layers repeated where there are more here."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from layers.errors import UsageError, first_line
from registry.snapshot import load
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
    """Where weights come from that are not initial ones."""

    sentence: str  # for a person
    parent: dict[str, Any]  # the other run, for experiment.json


def begin(session: Session) -> tuple[TrainState, Origin | None]:
    """The state before the first update, made where it lives, and where its weights come from if not initialized.

    Step, metrics, learning-rate schedule and data are those of a new run, whatever is taken from the other one.

    Raises:
      UsageError: the other run has no such checkpoint, or weights that do not fit.
    """
    warm = session.train.warm_start
    if warm is None:
        return session.init(), None
    wanted = _wanted(session, warm)
    step, stored = _find(session, warm)
    placed = lambda path, leaf: jax.ShapeDtypeStruct(stored[path_name(path)], leaf.dtype, sharding=leaf.sharding)
    abstract = jax.tree_util.tree_map_with_path(placed, wanted)
    source = Checkpoints(place(warm.workdir), read_only=True)
    old = source.restore_part(step, abstract)
    source.close()
    # One program: nothing but the old arrays and the new state is ever in memory, and both are split over the mesh.
    state = jax.jit(functools.partial(_grown, session), out_shardings=session.state_shardings)(old)
    grown = {(was[0], leaf.shape[0]) for path, leaf in _leaves(wanted) if (was := stored[path]) != leaf.shape}
    layers = "".join(f", {before} layers grown to {after}" for before, after in sorted(grown))
    what = "Weights and optimizer" if warm.optimizer else "Weights"
    sentence = f"{what} from {warm.workdir} (step {step}){layers}"
    return state, Origin(sentence, parent_run(warm.workdir, step) | {"optimizer": warm.optimizer})


def check_warm_start(session: Session, workdir: str, *, allow_changes: bool = False) -> None:
    """Finds out before a folder is made whether a new run there has what it begins with.

    Raises:
      UsageError: the other run has no such checkpoint, weights that do not fit, or other tokens.
    """
    folder = place(workdir) / FOLDER
    resumes = folder.is_dir() and any(path.name.isdigit() for path in folder.iterdir())
    if session.train.warm_start is not None and not resumes:
        _find(session, session.train.warm_start)
        _check_vocabulary(session, session.train.warm_start.workdir, allow_changes)


def _check_vocabulary(session: Session, other: str, allow_changes: bool) -> None:
    """Raises a UsageError where both runs are of text, and the same tokens stand for other text."""
    learned = load(place(other)).get("vocabulary") if (place(other) / EXPERIMENT).exists() else None
    ours = vocabulary_record(session.experiment)
    if not learned or not ours or learned["fingerprint"] == ours["fingerprint"]:
        return
    if not (ours["is_text"] and learned.get("is_text", True)):  # which older runs have not written down
        return
    said = (
        f"WARM_START = {other}: its tokens are those of {learned['is']} (fingerprint {learned['fingerprint'][:8]}), "
        f"and here of {ours['is']} ({ours['fingerprint'][:8]})"
    )
    if not allow_changes:
        raise UsageError(f"{said}: set VOCABULARY and VOCABULARY_PATH as there, or --allow_changes to begin anyway.")
    print(f"{said}; going on, as --allow_changes says.")


def _find(session: Session, warm: WarmStart) -> tuple[int, Shapes]:
    """The other run's checkpoint, and the shapes of its arrays, which fit this experiment."""
    where = f"WARM_START = {warm.workdir}"
    try:
        require_checkpoints(warm.workdir)
        source = Checkpoints(place(warm.workdir), read_only=True)
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
    """What is taken, in the shapes and places of the new state."""
    state = session.abstract_state
    return {"variables": state.variables} | ({"optimizer": state.optimizer} if warm.optimizer else {})


def _check(where: str, stored: Shapes, wanted: Any, table: WeightTable) -> None:
    """Raises a UsageError unless every array is there, in the shape of this experiment but for fewer layers."""
    named = dict(_leaves(wanted))
    slot = lambda path: path.startswith("optimizer/")
    fresh = lambda path: " WARM_START_OPTIMIZER=false begins with a fresh optimizer." if slot(path) else ""
    taken = (path for path in stored if path.partition("/")[0] in wanted)
    for path in sorted({*taken, *named}, key=lambda path: (slot(path), path)):
        name = path.removeprefix("variables/")
        if path not in named:
            raise UsageError(f"{where} has {name}, {_size(stored[path])}, which this experiment lacks.{fresh(path)}")
        have, want, layers = stored.get(path), tuple(named[path].shape), _layer_dims(path, table)
        if have is None:
            raise UsageError(f"{where} has no {name}, which is {_size(want)} here.{fresh(path)}")
        if len(have) != len(want) or have[layers:] != want[layers:]:
            raise UsageError(
                f"{where} does not fit: {name} is {_size(have)} there and {_size(want)} here, and only the number of "
                f"layers may differ."
            )
        if any(old > new for old, new in zip(have, want, strict=True)):
            raise UsageError(
                f"{where} has more layers than this experiment: {name} is {_size(have)} there and {_size(want)} here."
            )


def _layer_dims(path: str, table: WeightTable) -> int:
    """How many leading dimensions of a weight, or of its slot in the optimizer, number layers."""
    of = [row for row in table if f"/{row.path.removeprefix('params/')}/" in f"/{path}/"]
    return max(of, key=lambda row: len(row.path)).stacked if of else 0


def _grown(session: Session, old: dict[str, Any]) -> TrainState:
    """The new run's state with the old arrays in it."""
    variables = jax.tree.map(_grow, old["variables"], session.abstract_state.variables)
    # A fresh optimizer is one for these weights: it may hold copies of them.
    state = state_of(session.task, variables, empty_batch(session.train.input.batch_size, 1))
    if "optimizer" not in old:
        return state
    # The schedule begins with the run: its own count stays at zero.
    schedule = lambda part: isinstance(part, optax.ScaleByScheduleState)
    take = lambda new, was: new if schedule(new) else _grow(was, new)
    return state.replace(optimizer=jax.tree.map(take, state.optimizer, old["optimizer"], is_leaf=schedule))


def _grow(old: jax.Array, new: jax.Array) -> jax.Array:
    """Layer j of n is the old layer floor(j * old / n) (Rae et al. 2021, Gopher, appendix G.3.3)."""
    for dim, (before, after) in enumerate(zip(old.shape, new.shape, strict=True)):
        if before != after:
            old = jnp.take(old, np.arange(after) * before // after, axis=dim)
    return old


def _leaves(tree: Any) -> list[tuple[str, Any]]:
    return [(path_name(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def _size(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "a number"
