"""Sessions: an experiment on the available devices, with its mesh, programs and shardings."""

import bisect
import contextlib
import functools
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding

from layers.errors import UsageError, errors_of
from layers.pipeline import Schedule
from layers.stack import Stack, stacks_of
from registry.checks import Built, check
from registry.experiment import Experiment, cls_key, owner
from registry.records.quantities import mesh_text
from runners.abstract_arrays import AbstractArrays
from runners.compiled_functions import CompiledFunctions
from runners.host_batches import HostBatches
from runners.machine.chips import chip_of
from runners.mesh import granules, make_mesh
from runners.processes.coordination import ProcessGroup
from runners.throughput import Throughput
from tasks.weight_table import WeightTable
from tasks.zero import placed_table


def on_devices(experiment: Experiment, devices: Sequence[jax.Device]) -> Experiment:
    """Returns the experiment with the mesh that MESHES has for these devices; itself if it has none for them."""
    chip = chip_of(devices[0]) if experiment.MESHES else None
    return experiment if chip is None else experiment.on(chip.name, len(devices), len(granules(devices)))


class Session:
    """An experiment's mesh, task and programs, and the shardings of its arrays.

    Args:
      experiment: the experiment; on devices of a machine in its MESHES it has that mesh.
      devices: the devices of the mesh; by default all.
      processes: the processes of the run; None if this one runs alone.
      checked: the result of `check` for these devices, if it is known.

    Raises:
      UsageError: the experiment does not pass its check on these devices.
    """

    def __init__(
        self,
        experiment: Experiment,
        devices: Sequence[jax.Device] | None = None,
        processes: ProcessGroup | None = None,
        checked: Built | None = None,
    ):
        devices = jax.devices() if devices is None else devices
        self._devices = list(devices)
        experiment = on_devices(experiment, devices)
        self.experiment, self.processes = experiment, processes or ProcessGroup()
        if self.processes.count != jax.process_count():
            raise AssertionError(f"JAX runs {jax.process_count()} processes (got a group of {self.processes.count})")
        self.name = cls_key(type(experiment))
        self.mesh_shape = experiment.mesh_shape(len(devices))
        self.across = experiment.across(self.mesh_shape)
        self._built = built = checked or check(experiment, self.mesh_shape, devices[0].platform)
        self.task, self.train, self.test = built.task, built.train, built.test
        self.mesh = make_mesh(self.mesh_shape, experiment.DEVICE_ORDER, devices, self.across)
        sharding = NamedSharding(self.mesh, experiment.layout.activations["tokens_bs"])
        self.host_batches = HostBatches(sharding)
        self.abstract = AbstractArrays(self.task, self.train.input, sharding, self.mesh_shape)
        self.functions = CompiledFunctions(self.task, self.train, self.seed, self.abstract)
        self.throughput = Throughput(self.task, self.mesh, self.abstract)

    @functools.cached_property
    def phases(self) -> tuple["Session", ...]:
        """The sessions of the run's phases on the same devices, in order; itself alone if it has none."""
        later = zip(self.experiment.phases[1:], self._built.later_phases, strict=False)  # a phase has none
        # In the order that this session was given: that of its mesh is the result of a permutation.
        return (self, *(Session(phase, self._devices, self.processes, checked) for phase, checked in later))

    def of_update(self, step: int) -> "Session":
        """Returns the session of the phase that has update `step`, counted from 1; the first one for 0."""
        return self.phases[bisect.bisect_left(self.train.input.borders, step)]

    def require_data(self, *, train: bool, splits: Collection[str]) -> None:
        """Checks the data before they are read.

        Args:
          train: whether training data are read.
          splits: names of the inputs in `test.inputs` that are read; names without an input are ignored.
        Raises:
          UsageError: data are missing or too little.
        """
        if train:
            source, steps = self.train.input, self.train.num_steps
            source.require_data()
            end = source.num_batches()
            if end is not None and end < steps:
                raise UsageError(
                    f"train.input ends after {end} batches, before train.num_steps = {steps}. Lower train.num_steps."
                )
        for phase in self.phases:
            number = phase.experiment.phase
            with errors_of(f"PHASES[{number}]" if number else ""):
                phase._require_held_out(splits)

    def _require_held_out(self, splits: Collection[str]) -> None:
        for split, source in self.test.inputs.items():
            if split in splits:
                source.require_data()
                if source.num_batches() == 0:
                    raise UsageError(f"test.inputs.{split} has no batch. Give it more data or a smaller batch.")

    def shared_inputs(self, *, train: bool, splits: Collection[str]) -> dict[str, Any]:
        """Returns the inputs that must be the same in all processes, by config path; arguments as in `require_data`.

        These are none if no data are read, else all inputs of evaluation, and that of training if it is read.
        """
        if not train and not splits:
            return {}
        train_input = {"train.input": self.train.input} if train else {}
        return train_input | {
            f"test.inputs.{split}{f' of PHASES[{phase.experiment.phase}]' if phase.experiment.phase else ''}": source
            for phase in self.phases
            for split, source in phase.test.inputs.items()
        }

    @property
    def mesh_owner(self) -> str:
        """What states the mesh: a class, a flag, or a machine in MESHES."""
        return owner(type(self.experiment), "DEVICE_MESH_SHAPE")

    def show_mesh(self) -> None:
        """Prints which mesh of MESHES these devices have, in the first process, if MESHES has one for them."""
        if self.mesh_owner.startswith("MESHES") and self.processes.primary:
            print(f"Mesh {mesh_text(self.mesh_shape)}: {self.mesh_owner} of {self.name}", flush=True)

    @property
    def pipelines(self) -> list[tuple[Stack, Schedule]]:
        """The stacks that are pipelines on the mesh, with the schedule of the rows of an update or accumulated part."""
        rows = self.train.input.batch_size // self.task.gradient_accumulation
        with self.placed():
            found = [(one, one.pipeline.schedule(rows)) for one in stacks_of(self.task) if one.pipeline is not None]
        return [(stack, schedule) for stack, schedule in found if schedule is not None]

    def describe(self, attention: str) -> str:
        """Returns `, attention: ..., pipeline: ...` for the programs of this session, without what they do not have."""
        pipelines = self.pipelines
        schedules = "; ".join(dict.fromkeys(str(schedule) for _, schedule in pipelines))
        layers = sum(stack.num_layers for stack in stacks_of(self.task))
        others = layers - sum(stack.num_layers for stack, _ in pipelines)
        if pipelines and others:
            schedules += f", {others} layers (or repeats of a pattern) on all stages"
        parts = {"attention": attention, "pipeline": schedules}
        return "".join(f", {name}: {text}" for name, text in parts.items() if text)

    @contextlib.contextmanager
    def placed(self) -> Iterator[None]:
        """Makes partition specs refer to this session's mesh inside the context."""
        with jax.set_mesh(self.mesh):
            yield

    @property
    def table(self) -> WeightTable:
        """The weight table on the mesh."""
        return placed_table(self.task, self.mesh_shape)

    @functools.cached_property
    def seed(self) -> jax.Array:
        """The key from which all random numbers of a run are derived."""
        return jax.random.key(self.experiment.SEED)

    def settle(self, arrays: Any) -> Any:
        """Waits for the arrays if several virtual CPU devices share few threads; returns them.

        The collectives of many concurrent programs can deadlock there. Other devices queue work ahead.
        """
        crowded = self.mesh.size > 1 and self.mesh.devices.flat[0].platform == "cpu"
        return jax.block_until_ready(arrays) if crowded else arrays
