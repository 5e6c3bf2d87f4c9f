"""Sessions: an experiment on the available devices, with its mesh, programs, shardings and compiled functions."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
import optax
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding

from layers.auxiliary import OVERHEAD
from layers.errors import UsageError
from layers.specs import P
from registry.build import build
from registry.checks import check
from registry.device_order import DeviceOrder, device_ids
from registry.experiment import Experiment, cls_key
from runners.chips import chip_of
from runners.flops import matmul_flops
from tasks.batch import Batch, empty_batch
from tasks.gradients import metrics_of
from tasks.inputs.indexed import IndexedInput, InputIterator, Shard
from tasks.programs import TestProgram, TrainProgram
from tasks.task import Task
from tasks.train_step import TrainState, init_state, state_of, state_specs, train_step
from tasks.zero import placed_table


def make_mesh(shape: Mapping[str, int], order: DeviceOrder, devices: Sequence[jax.Device]) -> Mesh:
    """Returns the mesh with these axis sizes and the devices in this order."""
    sizes, axes = tuple(shape.values()), tuple(shape)
    kinds = (AxisType.Auto,) * len(axes)
    slices = len({getattr(device, "slice_index", 0) for device in devices}) if devices[0].platform == "tpu" else 1
    if slices > 1:
        return Mesh(_over_slices(sizes, axes, slices, devices), axes, kinds)
    if order == "auto":
        placed = mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
        return Mesh(placed, axes, kinds)
    by_id = np.array(sorted(devices, key=lambda device: device.id))
    return Mesh(by_id[device_ids(order, sizes)], axes, kinds)


def _over_slices(sizes: tuple[int, ...], axes: tuple[str, ...], slices: int, devices: Sequence[jax.Device]) -> Any:
    """Returns devices of several TPU slices: the first mesh axis spans the slices, over the network between hosts."""
    if sizes[0] % slices:
        raise UsageError(
            f"The number of TPU slices must divide the mesh axis '{axes[0]}' = {sizes[0]} (got {slices} slices). Set "
            f"another DEVICE_MESH_SHAPE."
        )
    inside, across = (sizes[0] // slices, *sizes[1:]), (slices, *(1 for _ in sizes[1:]))
    return mesh_utils.create_hybrid_device_mesh(inside, across, devices, allow_split_physical_axes=True)


class Session:
    """The experiment's mesh, task and programs, and the compiled functions of arrays that modes call.

    Raises:
      UsageError: the experiment does not pass its check on these devices.
    """

    def __init__(self, experiment: Experiment, devices: Sequence[jax.Device] | None = None):
        self.experiment = experiment
        self.name = cls_key(type(experiment))
        devices = jax.devices() if devices is None else devices
        self.mesh_shape = experiment.mesh_shape(len(devices))
        check(experiment, self.mesh_shape)
        self.task: Task = build(experiment.Task(), "task")
        self.train: TrainProgram = build(experiment.Train(), "train")
        self.test: TestProgram = build(experiment.Test(), "test")
        self.mesh = make_mesh(self.mesh_shape, experiment.DEVICE_ORDER, devices)
        self.batch_sharding = NamedSharding(self.mesh, experiment.ACTIVATIONS["tokens_bs"])
        self._flops: dict[tuple[int, int], int] = {}

    def require_data(self, mode: str) -> None:
        """Raises a UsageError if the data that a mode reads is missing or too little."""
        if mode in ("train", "profile"):
            source, steps = self.train.input, self.train.num_steps
            source.require_data()
            end = source.num_batches()
            if end is not None and end < steps:
                raise UsageError(
                    f"train.input ends after {end} batches, before train.num_steps = {steps}. Lower train.num_steps."
                )
        split = "validation" if mode == "train" else mode
        if split in self.test.inputs:
            self.test.inputs[split].require_data()
            if self.test.inputs[split].num_batches() == 0:
                raise UsageError(f"test.inputs.{split} has no batch. Give it more data or a smaller batch.")

    def inputs_of(self, mode: str) -> dict[str, Any]:
        """Returns the inputs that must be the same in all processes of a mode, by config path."""
        if mode == "sample":
            return {}
        learned = {"train.input": self.train.input} if mode in ("train", "profile") else {}
        return learned | {f"test.inputs.{split}": source for split, source in self.test.inputs.items()}

    @contextlib.contextmanager
    def placed(self) -> Iterator[None]:
        """Makes partition specs refer to this session's mesh inside the context."""
        with jax.set_mesh(self.mesh):
            yield

    @property
    def seed(self) -> jax.Array:
        """The key from which all random numbers of a run are derived."""
        return jax.random.key(self.experiment.SEED)

    @functools.cached_property
    def state_shardings(self) -> TrainState:
        """The sharding of each array of the train state."""
        specs = state_specs(self.task, placed_table(self.task, self.mesh_shape), self.sample_batch)
        return jax.tree.map(lambda spec: NamedSharding(self.mesh, spec), specs)

    @property
    def sample_batch(self) -> Batch:
        """A batch of zeros in the shape of the training input's full-length rows."""
        return empty_batch(self.train.input.batch_size, self.train.input.seq_len)

    @functools.cached_property
    def abstract_state(self) -> TrainState:
        """Shapes, dtypes and shardings of the train state."""
        shapes = jax.eval_shape(lambda: init_state(self.task, self.seed, self.sample_batch))
        place = lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
        return jax.tree.map(place, shapes, self.state_shardings)

    def init(self, seed: jax.Array | None = None) -> TrainState:
        """Returns the state before the first update, created with its shardings; by default from SEED."""
        return self._init(self.seed if seed is None else seed)

    @functools.cached_property
    def _init(self) -> Any:
        make = functools.partial(init_state, self.task, batch=empty_batch(self.train.input.batch_size, 1))
        return jax.jit(make, out_shardings=self.state_shardings)

    def start_from(self, variables: Any) -> TrainState:
        """Returns the state before the first update with these variables, created with its shardings."""
        rows = empty_batch(self.train.input.batch_size, 1)
        return jax.jit(lambda v: state_of(self.task, v, rows), out_shardings=self.state_shardings)(variables)

    def step(self, state: TrainState, batch: Batch, seed: jax.Array, rate: Any = None) -> TrainState:
        """Returns the state after one update; with `rate`, at that learning rate."""
        task: Any = self.task
        if rate is not None:
            task = dataclasses.replace(task, optimizer=dataclasses.replace(task.optimizer, learning_rate=rate))
        return train_step(task, state, batch, seed, self.train.log_every)

    def lower_step(self, batch: Batch, *others: Any) -> Any:
        """Returns the lowered update `(state, batch, seed) -> state`, which donates the old state.

        `batch` and the seed may be shapes with shardings. A learning rate after the seed becomes an argument too.
        """
        jitted = jax.jit(self.step, donate_argnums=0, out_shardings=self.state_shardings, keep_unused=True)
        return jitted.lower(self.abstract_state, batch, *others)

    def compile_step(self, batch: Batch, *, takes_rate: bool = False) -> Any:
        """Returns the compiled update; with `takes_rate`, it takes the learning rate as an argument after the seed."""
        rate = (jax.ShapeDtypeStruct((), np.float32),) if takes_rate else ()
        return self.lower_step(batch, self.seed, *rate).compile()

    def abstract(self, tree: Any, sharding: NamedSharding | None = None) -> Any:
        """Returns a tree like `tree` of shapes, dtypes and a sharding (None: a copy on every device)."""
        sharding = NamedSharding(self.mesh, P()) if sharding is None else sharding
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)

    @property
    def abstract_batch(self) -> Batch:
        """Shapes, dtypes and shardings of the training input's batches; reads one batch for its fields."""
        source = self.train.input
        row = source.batch(0, Shard(0, source.batch_size))
        shape = (source.batch_size, source.seq_len)  # of full-length rows: the first ones may be shorter
        full = jax.tree.map(lambda x: jax.ShapeDtypeStruct(shape, x.dtype), row)
        return self.abstract(full, self.batch_sharding)

    @property
    def abstract_seed(self) -> Any:
        """The shape, dtype and sharding of the seed."""
        return self.abstract(jax.eval_shape(lambda: jax.random.key(0)))

    @functools.cached_property
    def norm_of(self) -> Any:
        """The jitted global norm of a tree of arrays: one program instead of one per operation."""
        return jax.jit(optax.global_norm)

    @functools.cached_property
    def metrics_of(self) -> Any:
        """The jitted evaluation `(variables, batch) -> MetricSums`."""
        return jax.jit(lambda variables, batch: metrics_of(self.task, variables, batch))

    def update_flops(self, shape: tuple[int, int]) -> int:
        """Returns the FLOPs in the matrix products of an update with a batch of (rows, positions).

        This is three times the count of the forward pass; rematerialization is not counted, nor are products that only
        move data, such as dispatch to experts.
        """
        if shape not in self._flops:
            loss = lambda variables, batch: self.task.loss(variables, batch)[0]
            variables, batch = self.abstract_state.variables, empty_batch(*shape)
            self._flops[shape] = 3 * matmul_flops(loss, variables, batch, leave_out=OVERHEAD)
        return self._flops[shape]

    @property
    def flops_per_token(self) -> float:
        """`update_flops` of a batch of full-length rows, per token."""
        tokens = self.sample_batch.inputs
        return self.update_flops(tokens.shape) / tokens.size

    def mfu(self, updates: Mapping[tuple[int, int], int], seconds: float) -> float | None:
        """Returns the model FLOPs utilization (Chowdhery et al. 2022, appendix B); None if the device is unknown.

        Args:
          updates: the number of updates with batches of each shape.
          seconds: the time they took.
        """
        chip = chip_of(self.mesh.devices.flat[0])
        if chip is None:
            return None
        flops = sum(count * self.update_flops(shape) for shape, count in updates.items())
        return flops / (seconds * chip.flops * self.mesh.size)

    def shards(self, source: IndexedInput) -> tuple[Shard, ...]:
        """Returns the shards of each batch on this host's devices; hosts that hold copies of a shard all read it."""
        return host_shards(self.batch_sharding, (source.batch_size, source.seq_len), jax.process_index())

    def settle(self, arrays: Any) -> Any:
        """Waits for the arrays if several virtual CPU devices share few threads; returns them.

        The collectives of many concurrent programs can deadlock there. Other devices queue work ahead.
        """
        crowded = self.mesh.size > 1 and self.mesh.devices.flat[0].platform == "cpu"
        return jax.block_until_ready(arrays) if crowded else arrays

    def put(self, batch: Batch, shards: Sequence[Shard] = (Shard(),)) -> Batch:
        """Returns global arrays on the mesh from a host's concatenated shards of a batch; by default the full batch."""
        return jax.tree.map(lambda part: self._placed(part, shards), batch)

    def _placed(self, part: np.ndarray, shards: Sequence[Shard]) -> jax.Array:
        rows = part.shape[0] // len(shards)  # of one shard
        begin = {shard.index: number * rows for number, shard in enumerate(shards)}
        shape = (rows * shards[0].count, part.shape[1])

        def of_device(index: Any) -> np.ndarray:
            low, high, _ = index[0].indices(shape[0])
            start = begin[low // rows] + low % rows
            return part[start : start + high - low, index[1]]

        return jax.make_array_from_callback(shape, self.batch_sharding, of_device)

    def batches(
        self, source: IndexedInput, start: dict[str, Any] | None = None
    ) -> Iterator[tuple[Batch, dict[str, Any]]]:
        """Yields batches on the mesh, each with the iterator's state after it; prefetches one batch in a thread."""
        shards = self.shards(source)
        iterator = source.iterator(*shards)
        if start is not None:
            iterator.restore(start)
        with ThreadPoolExecutor(1) as worker:
            following = worker.submit(self._next, iterator, shards)
            while (current := following.result()) is not None:
                following = worker.submit(self._next, iterator, shards)
                yield current

    def _next(self, iterator: InputIterator, shards: Sequence[Shard]) -> tuple[Batch, dict[str, Any]] | None:
        batch = next(iterator, None)
        return None if batch is None else (self.put(batch, shards), iterator.state())


def host_shards(sharding: NamedSharding, shape: tuple[int, int], process: int) -> tuple[Shard, ...]:
    """Returns the shards of a batch (rows, positions) on the devices of a process, in order; one if possible.

    On a torus the rows of a host's chips are seldom contiguous.
    """
    places = sharding.devices_indices_map(shape)
    held = {index[0].indices(shape[0])[:2] for device, index in places.items() if device.process_index == process}
    size = max(high - low for low, high in held)  # the same for all devices
    numbers, count = sorted(low // size for low, _ in held), shape[0] // size
    several, first = len(numbers), numbers[0]
    if numbers == list(range(first, first + several)) and first % several == count % several == 0:
        return (Shard(first // several, count // several),)
    return tuple(Shard(number, count) for number in numbers)


class Updates:
    """Cache of compiled updates by batch shape."""

    def __init__(self, session: Session, *, takes_rate: bool = False):
        self._session, self._takes_rate = session, takes_rate
        self._compiled: dict[tuple[int, ...], Any] = {}

    def __contains__(self, batch: Batch) -> bool:
        """Returns whether the update for batches of this shape is compiled."""
        return batch.inputs.shape in self._compiled

    def of(self, batch: Batch) -> Any:
        """Returns `Session.compile_step` for batches of this shape; compiles it on the first call."""
        if batch not in self:
            compiled = self._session.compile_step(batch, takes_rate=self._takes_rate)
            self._compiled[batch.inputs.shape] = compiled
        return self._compiled[batch.inputs.shape]
