"""Warm starts: a run begins with initial weights, or with those of another run, with layers repeated to grow depth."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import optax

from layers.errors import UsageError, errors_of, first_line
from registry.experiment import knob_types
from registry.records.record import EXPERIMENT, load
from registry.values import is_per_layer, parse
from runners.session import Session
from runners.stacked_arrays import StackedArrays
from runners.training.checkpoints import Checkpoints, path_name, require_checkpoints, shapes_by_path
from runners.training.history import parent_run
from runners.training.origins.growth import Growth
from runners.training.workdir import require_shared_vocabulary
from tasks.batch import empty_batch
from tasks.programs import WarmStart
from tasks.storage.files import place
from tasks.train_step import TrainState, state_of


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
    step, growth = _find(session, warm)
    source = Checkpoints(place(warm.workdir), read_only=True, processes=session.processes)
    old = source.restore_part(step, _old_state(growth, _wanted(session, warm)))
    source.close()
    # One program: only the old arrays and the new state are in memory, and both are sharded over the mesh.
    grow = functools.partial(_grown, session, growth)
    state = jax.jit(grow, out_shardings=session.abstract.state_shardings)(dict(_leaves(old)))
    layers = f", {growth}" if str(growth) else ""
    what = "Weights and optimizer" if warm.optimizer else "Weights"
    sentence = f"{what} from {warm.workdir} (step {step}){layers}"
    return state, Origin(sentence, parent_run(warm.workdir, step) | {"optimizer": warm.optimizer})


def check_warm_start(session: Session, *, allow_changes: bool = False) -> None:
    """Checks the warm start of a new run, if it has one, before its folder is created.

    Raises:
      UsageError: the other run lacks the checkpoint, its weights do not fit, or its vocabulary differs.
    """
    if session.train.warm_start is not None:
        _find(session, session.train.warm_start)
        other = session.train.warm_start.workdir
        advice = "Set VOCABULARY and VOCABULARY_PATH as there, or add --allow_changes."
        require_shared_vocabulary(f"WARM_START = {other}", other, session.experiment, advice, allow_changes)


def _find(session: Session, warm: WarmStart) -> tuple[int, Growth]:
    """Returns the step of the other run's checkpoint, and how its arrays become those of this experiment."""
    where = f"WARM_START = {warm.workdir}"
    with errors_of(where):
        require_checkpoints(warm.workdir)
        source = Checkpoints(place(warm.workdir), read_only=True, processes=session.processes)
        step = source.find(warm.checkpoint)
    try:
        stored = source.stored_shapes(step)
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"{where}: checkpoint {step} cannot be read: {first_line(error)}. Choose another.") from error
    source.close()
    wanted = _wanted(session, warm)
    old = StackedArrays({path: shape for path, shape in stored.items() if path.partition("/")[0] in wanted})
    new = StackedArrays(shapes_by_path(wanted))
    _check(f"{where} (step {step})", old, new)
    try:
        return step, Growth.of(old, new, *_knobs_of_layers(session, warm))
    except UsageError as error:
        raise UsageError(f"{where} (step {step}) {error}") from error


def _knobs_of_layers(session: Session, warm: WarmStart) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the knobs that may have a pattern over layers, of the other run, if it has a record, and of this one."""
    experiment = session.experiment
    names = [name for name, hint in knob_types(type(experiment)).items() if is_per_layer(hint)]
    record = place(warm.workdir) / EXPERIMENT
    knobs = load(place(warm.workdir))["knobs"] if record.exists() else {}
    theirs = {name: parse(knobs[name]["value"]) for name in names if name in knobs}
    return theirs, {name: getattr(experiment, name) for name in names}


def _wanted(session: Session, warm: WarmStart) -> dict[str, Any]:
    """Returns the parts of the state to take, with the shapes and shardings of the new state."""
    state = session.abstract.state
    return {"variables": state.variables} | ({"optimizer": state.optimizer} if warm.optimizer else {})


def _check(where: str, old: StackedArrays, new: StackedArrays) -> None:
    """Raises a UsageError unless both states have the same arrays, of the same shapes in one layer."""
    slot = lambda name: name.startswith("optimizer/")
    fresh = lambda name: " Set WARM_START_OPTIMIZER=false to begin with a fresh optimizer." if slot(name) else ""
    for name in sorted({*old.paths, *new.paths}, key=lambda name: (slot(name), name)):
        path, other = (next(iter(arrays.paths.get(name, {None: ""}).values())) for arrays in (old, new))
        shown = (path or other).removeprefix("variables/")
        if not other:
            size = _size(old.shapes[path])
            raise UsageError(f"{where} has {shown}, {size}, which this experiment lacks.{fresh(name)}")
        if not path:
            raise UsageError(f"{where} lacks {shown}, which is {_size(new.shapes[other])} here.{fresh(name)}")
        have, want = ({arrays.of_layer(name, at) for at in arrays.paths[name]} for arrays in (old, new))
        if not want <= have:
            other = next(path for at, path in new.paths[name].items() if new.of_layer(name, at) not in have)
            raise UsageError(
                f"{where} does not fit this experiment. {shown} is {_size(old.shapes[path])} there and "
                f"{_size(new.shapes[other])} here; only the number of layers may differ."
            )


def _old_state(growth: Growth, wanted: Any) -> Any:
    """Returns the old state's parts with the dtypes and shardings of the new ones, which may have other stacks."""
    old = {
        path: jax.ShapeDtypeStruct(growth.old.shapes[path], leaf.dtype, sharding=leaf.sharding)
        for new, leaf in _leaves(wanted)
        for path in growth.needed(new)
    }

    def below(prefix: str) -> dict[str, Any]:
        """Returns the old arrays below a path as nested dictionaries."""
        tree: dict[str, Any] = {}
        for path in (path for path in old if path.startswith(prefix)):
            *parents, name = path.removeprefix(prefix).split("/")
            functools.reduce(lambda node, key: node.setdefault(key, {}), parents, tree)[name] = old[path]
        return tree

    has_stack = lambda node: isinstance(node, Mapping) and "stack" in node
    part = lambda path, leaf: below(f"{path_name(path)}/") if has_stack(leaf) else old[path_name(path)]
    return jax.tree_util.tree_map_with_path(part, wanted, is_leaf=has_stack)


def _grown(session: Session, growth: Growth, old: Mapping[str, jax.Array]) -> TrainState:
    """Returns the state of the new run with the old arrays, by path, grown in depth."""
    take = lambda part: lambda path, _: growth.array(f"{part}/{path_name(path)}", old)
    variables = jax.tree_util.tree_map_with_path(take("variables"), session.abstract.state.variables)
    # The optimizer state is initialized from these weights, because it may hold copies of them.
    state = state_of(session.task, variables, empty_batch(session.train.input.batch_size, 1))
    if not any(path.startswith("optimizer/") for path in old):
        return state
    # The schedule starts with the new run: its count stays at zero, and that of schedule-free averages at one.
    schedule = lambda part: isinstance(part, optax.ScaleByScheduleState)
    restarts = lambda path, new: schedule(new) or getattr(path[-1], "name", "") == "step_count"
    taken = lambda path, new: new if restarts(path, new) else take("optimizer")(path, new)
    optimizer = jax.tree_util.tree_map_with_path(taken, state.optimizer, is_leaf=schedule)
    return state.replace(optimizer=optimizer)


def _leaves(tree: Any) -> list[tuple[str, Any]]:
    return [(path_name(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def _size(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "a number"
