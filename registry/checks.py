"""Validation of an experiment before it runs."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import fiddle as fdl
import flax.linen as nn
import jax
from jax.sharding import AbstractMesh, AxisType

from layers.errors import SpecError, UsageError, did_you_mean, errors_of
from layers.platform import checking
from layers.specs import axes_of, show_spec
from layers.stack import stacks_of
from registry.build import build, config_of
from registry.config_paths import walk
from registry.experiment import Experiment, cls_key, stated_rows
from registry.knobs.unread import require_effect
from registry.overrides import METHODS
from registry.user_code import building
from tasks.batch import empty_batch
from tasks.gradients import metrics_of
from tasks.inputs.indexed import IndexedInput
from tasks.inputs.phased import PhasedInput
from tasks.programs import TestProgram, TrainProgram
from tasks.task import Task
from tasks.train_step import abstract_state
from tasks.weight_table import WeightTable, check_spec
from tasks.zero import placed_table


@dataclasses.dataclass(frozen=True)
class Built:
    """What an experiment's configs build."""

    task: Task
    train: TrainProgram
    test: TestProgram
    later_phases: "tuple[Built, ...]" = ()


def check(experiment: Experiment, mesh: Mapping[str, int] | None = None, platform: str = "any") -> Built:
    """Validates an experiment against a mesh; by default against its own, as declared, and all of MESHES.

    Args:
      experiment: what is checked.
      mesh: sizes of its axes.
      platform: that of the devices, "cpu", "gpu" or "tpu", if it is known.
    Returns:
      What its configs build.

    Raises:
      UsageError: the first error found, in one sentence.
    """
    shape = experiment.mesh_shape() if mesh is None else mesh
    configs = {root: config_of(experiment, root) for root in METHODS}
    require_effect(experiment)
    _no_shared_modules(configs["task"])
    built = Built(**{root: build(config, root) for root, config in configs.items()})
    task, train, test = built.task, built.train, built.test
    with building(type(experiment)), checking(platform):
        table = task.weight_table()
        for rows, length in train.input.shapes():
            _trace_loss(task, rows, length)
    _require_pipeline(experiment, task)
    _require_used_rows(experiment, task, table)
    _used_activations(experiment, configs["task"])
    inputs = {"train.input": train.input, **{f"test.inputs.{split}": source for split, source in test.inputs.items()}}
    _check_mesh(experiment, task, inputs, shape)
    for name in experiment.machine_meshes if mesh is None else ():
        placed = experiment.with_mesh_of(name)
        with errors_of(f"MESHES['{name}']"):
            _check_mesh(placed, task, inputs, placed.mesh_shape())
    _require_stated_phases(experiment, train)
    later = experiment.phases[1:] if experiment.phase == 0 else ()
    checked = tuple(_check_phase(experiment, built, phase, mesh, platform) for phase in later)
    return dataclasses.replace(built, later_phases=checked)


def _require_stated_phases(experiment: Experiment, train: TrainProgram) -> None:
    """Rejects an input of phases that differs from PHASES, because --set has changed a field that others follow."""
    source = train.input
    if not isinstance(source, PhasedInput):
        return
    phases: Any = experiment.phases
    stated = {
        "train.input.steps": (source.steps, phases[0].steps_of_phases),
        "train.input.phase": (source.phase, experiment.phase),
        "train.num_steps": (train.num_steps, sum(source.steps)),
        **{
            f"train.input.phases.{number}.batch_size": (part.batch_size, phases[number].BATCH_SIZE)
            for number, part in enumerate(source.phases)
        },
    }
    for path, (found, wanted) in stated.items():
        if found != wanted:
            raise UsageError(f"{path} must be {wanted}, as PHASES state (got {found}). Change PHASES or its knobs.")


def _check_phase(
    experiment: Experiment, first: Built, phase: Experiment, mesh: Mapping[str, int] | None, platform: str
) -> Built:
    """Validates the experiment of a later phase, whose knobs may not change the train state or the run."""
    where = f"PHASES[{phase.phase}]"
    with errors_of(where):
        built = check(phase, mesh, platform)
    shape = experiment.mesh_shape() if mesh is None else mesh
    for sizes in (_of_run, lambda experiment, made: _of_state(made, shape)):
        before, now = sizes(experiment, first), sizes(phase, built)
        for name in before | now:
            if before.get(name) != now.get(name):
                raise UsageError(
                    f"{where} changes {name} (got {now.get(name, 'nothing')}, in the first phase "
                    f"{before.get(name, 'nothing')}). All phases have the same weights, slots, mesh and schedule."
                )
    return built


def _of_state(built: Built, mesh: Mapping[str, int]) -> dict[str, str]:
    """Returns the shape and dtype of each array of the train state, and the placement of each weight."""
    rows, source = placed_table(built.task, mesh), built.train.input
    state = abstract_state(built.task, empty_batch(source.batch_size, source.seq_len))
    leaves = jax.tree_util.tree_leaves_with_path(state)
    found = {row.path: f"{row.shape} {row.dtype} {show_spec(row.spec)} {row.method}" for row in rows}
    name = lambda path: jax.tree_util.keystr(path, simple=True, separator="/")
    return found | {name(path): f"{leaf.shape} {leaf.dtype}" for path, leaf in leaves}


def _of_run(experiment: Experiment, built: Built) -> dict[str, str]:
    """Returns the settings that belong to the complete run."""
    fields = {field.name: str(getattr(built.train, field.name)) for field in dataclasses.fields(built.train)}
    own = ("SEED", "DEVICE_MESH_SHAPE", "MESH_AXES", "DCN_MESH_SHAPE", "DEVICE_ORDER", "PHASES")
    fields |= {name: str(getattr(experiment, name, None)) for name in own}
    shared = {"the schedule": str(built.task.optimizer.schedule), "the vocabulary": str(built.task.vocabulary)}
    return {name: value for name, value in fields.items() if name != "input"} | shared


def _check_mesh(
    experiment: Experiment, task: Task, inputs: Mapping[str, IndexedInput], mesh: Mapping[str, int]
) -> None:
    """Validates what depends on the mesh."""
    experiment.across(mesh)
    placed_table(task, mesh).check(mesh)
    _known_axes(experiment, mesh)
    _require_even_batches(task, inputs, mesh)
    if task.zero is not None:
        with building(type(experiment)), checking("any"), jax.sharding.use_abstract_mesh(_abstract(mesh)):
            for rows, length in inputs["train.input"].shapes():
                _trace_metrics(task, rows // task.gradient_accumulation, length)


def _require_used_rows(experiment: Experiment, task: Task, table: WeightTable) -> None:
    """Raises an error for rows, and names in NO_DECAY and OPTIMIZERS, that the entry states and no weight has."""
    name, used = cls_key(type(experiment)), {row.key for row in table}
    for key in stated_rows(type(experiment), "WEIGHTS"):
        if key not in used:
            raise SpecError(
                f"WEIGHTS of {name} has a row '{key}' = {show_spec(experiment.WEIGHTS[key])}, but no weight uses it. "
                f"{did_you_mean(key, used)}"
            )
    for key in task.optimizer.no_decay:
        if key not in experiment.specs:
            raise UsageError(f"NO_DECAY of {name} names '{key}'. {did_you_mean(key, experiment.specs)}")
    found: dict[str, set[str]] = {}
    for row in (row for row in table if row.learned):
        for key in (row.role, row.key, f"_{row.letters}"):
            found.setdefault(key, set()).add(row.method)
    for key, method in task.optimizer.methods:
        if key not in found:
            raise UsageError(
                f"OPTIMIZERS of {name} names '{key}', which no weight has as its name, role, or letters after `_`. "
                f"{did_you_mean(key, found)}"
            )
        if method not in found[key]:
            raise UsageError(
                f"OPTIMIZERS.{key} = {method} of {name} has no effect: the weights are vectors, or have an entry of "
                f"their own. Remove it."
            )


def _require_pipeline(experiment: Experiment, task: Task) -> None:
    """Raises an error if STACK names an axis and the model, which a user's class may make, has no pipeline."""
    if experiment.stage_axis is not None and all(stack.pipeline is None for stack in stacks_of(task)):
        raise UsageError(
            f"STACK = {show_spec(experiment.STACK)} of {cls_key(type(experiment))} has no effect: no stack of its "
            f"model has a pipeline. Set `pipeline` of a layers.stack.Stack, or STACK to P(None)."
        )


def _require_even_batches(task: Task, inputs: Mapping[str, IndexedInput], mesh: Mapping[str, int]) -> None:
    """Raises an error if micro-batches or devices do not divide the rows of a batch; `inputs` by config path."""
    placement = task.batch_placement.lookup("tokens_bs", "the batch")
    if task.zero is not None:
        task.zero.check_batch(placement)
    for where, source in inputs.items():
        pieces = task.gradient_accumulation if where == "train.input" else 1
        if source.batch_size % pieces:
            raise UsageError(
                f"{where}.batch_size must be divisible by task.gradient_accumulation = {pieces} (got "
                f"{source.batch_size})."
            )
        for rows, length in source.shapes():
            batch = f"{where}: a batch of {rows} rows" + (f" in {pieces} micro-batches" if pieces > 1 else "")
            check_spec(batch, placement, (rows // pieces, length), mesh)


def _trace_loss(task: Task, rows: int, length: int) -> None:
    """Traces the loss without arrays, which detects mismatched shapes."""
    batch = empty_batch(rows, length)
    jax.eval_shape(lambda variables: task.loss(variables, batch)[0], task.weight_table().abstract)


def _trace_metrics(task: Task, rows: int, length: int) -> None:
    """Traces the loss on the devices of the mesh, each with its own rows."""
    batch = empty_batch(rows, length)
    jax.eval_shape(lambda variables: metrics_of(task, variables, batch), task.weight_table().abstract)


def _abstract(mesh: Mapping[str, int]) -> AbstractMesh:
    return AbstractMesh(tuple(mesh.values()), tuple(mesh), axis_types=(AxisType.Auto,) * len(mesh))


def _no_shared_modules(config: fdl.Config) -> None:
    seen: dict[int, str] = {}
    for path, value in walk(config, "task"):
        if isinstance(value, fdl.Config) and _is_module(value):
            first = seen.setdefault(id(value), path)
            if first != path:
                raise UsageError(f"{first} and {path} are the same config, which would tie weights. Make two configs.")


def _is_module(config: fdl.Config) -> bool:
    made = fdl.get_callable(config)
    return isinstance(made, type) and issubclass(made, nn.Module)


def _known_axes(experiment: Experiment, mesh: Mapping[str, int]) -> None:
    for table in ("WEIGHTS", "ACTIVATIONS"):
        for key, spec in getattr(experiment, table).items():
            for axis in (axis for entry in spec for axis in axes_of(entry)):
                if axis not in mesh:
                    raise SpecError(
                        f"{table}.{key} = {show_spec(spec)} names mesh axis '{axis}'. {did_you_mean(axis, mesh)}"
                    )


def _used_activations(experiment: Experiment, config: fdl.Config) -> None:
    layers = [fdl.get_callable(value) for _, value in walk(config, "task") if isinstance(value, fdl.Config)]
    known = {row for layer in layers for row in getattr(layer, "SPECS", ())}
    for key in stated_rows(type(experiment), "ACTIVATIONS"):
        if key not in known:
            raise SpecError(
                f"ACTIVATIONS has a row '{key}', but no layer places such an array. {did_you_mean(key, known)}"
            )
