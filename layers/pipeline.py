"""Pipeline parallelism: the layers of a stack are split over a mesh axis, and micro-batches pass through its devices.

Each device of the axis is a stage. With R repeats a stage has R parts of the stack, such that a micro-batch goes round
the stages R times (Narayanan et al. 2021, Megatron-LM, section 2.2, the interleaved schedule): groups of as many
micro-batches as stages go round together, so that one that leaves the last stage enters the first in the next tick. A
batch of M micro-batches takes M R + S - 1 ticks on S stages, of which each stage works in M R. In the others, the
bubble, it computes results that nothing reads.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Int

from layers.auxiliary import UPDATES, add_updates
from layers.collectives import staged
from layers.errors import UsageError
from layers.specs import P, Specs, split_of

INPUT = "layer_input"  # name of activations that the backward pass does not recompute
MICROBATCHES_PER_STAGE = 4  # the bubble is small from there (Huang et al. 2019, GPipe, section 2.3)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pipeline:
    """How a stack is split over a mesh axis."""

    SPECS: ClassVar[tuple[str, ...]] = ("residual_bsm",)

    activations: Specs
    axis: str  # the mesh axis of stages
    repeats: int = 1  # parts of the stack on a stage
    microbatches: int | None = None  # of a batch; None: at most MICROBATCHES_PER_STAGE per stage

    def stages(self) -> int:
        """Returns the size of the axis in the mesh of the program that is traced; 1 without a mesh."""
        mesh = jax.sharding.get_abstract_mesh()
        return 1 if mesh.empty else mesh.shape.get(self.axis, 1)

    def schedule(self, rows: int) -> "Schedule | None":
        """Returns the schedule of a batch of this many rows, without those of other devices of a manual axis.

        It has the most micro-batches, up to those stated, of which each device has rows; None if rows allow none.
        """
        stages = self.stages()
        others = math.prod(n for axis, n in split_of(self.activations, "residual_bsm", 0).items() if axis != self.axis)
        count = most_microbatches(rows, stages, others, self.microbatches)
        return Schedule(stages=stages, repeats=self.repeats, microbatches=count) if stages > 1 and count else None


def most_microbatches(rows: int, stages: int, devices: int, wanted: int | None) -> int:
    """Returns the number of micro-batches of a batch: the largest multiple of the stages that its rows allow, or 0.

    Args:
      rows: of the batch.
      stages: number of stages.
      devices: devices of a stage that split the rows; each has rows of every micro-batch.
      wanted: at most so many; None is MICROBATCHES_PER_STAGE per stage.
    """
    most = MICROBATCHES_PER_STAGE if wanted is None else wanted // stages
    fits = [groups for groups in range(1, most + 1) if rows % (groups * stages * devices) == 0]
    return stages * max(fits, default=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """Which micro-batch and which part of the stack a stage works on at each tick."""

    stages: int
    repeats: int
    microbatches: int

    @property
    def groups(self) -> int:
        """Number of groups of micro-batches that go round together, one micro-batch per stage."""
        return self.microbatches // self.stages

    @property
    def ticks(self) -> int:
        """Number of ticks in which all micro-batches pass through all stages."""
        return self.microbatches * self.repeats + self.stages - 1

    @property
    def bubble(self) -> float:
        """Share of the ticks in which a stage has no micro-batch."""
        return (self.stages - 1) / self.ticks

    def __str__(self) -> str:
        repeats = f" x {self.repeats} repeats" if self.repeats > 1 else ""
        ticks = f"{self.bubble:.1%} of {self.ticks} ticks"
        return f"{self.stages} stages{repeats}, {self.microbatches} micro-batches, bubble {ticks}"

    def at(self, tick: Any, stage: Any) -> tuple[Any, Any, Any]:
        """Returns the part of the stack, the micro-batch, and whether the stage has one."""
        done = tick - stage
        group, place = done // (self.stages * self.repeats), done % self.stages
        is_valid = (done >= 0) & (done < self.microbatches * self.repeats)
        return done // self.stages % self.repeats, group * self.stages + place, is_valid


Layer = Callable[..., tuple[Array, Any]]
"""Maps (variables of a layer, keys for random numbers, x, segment_ids, positions) to (x, collections)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stages:
    """The layers of a stack on the devices of a mesh axis."""

    axis: str
    schedule: Schedule
    layer: Layer
    policy: Any  # what the backward pass need not recompute in a layer, besides its input
    unroll: int = 1  # layers per iteration of the scan over those of a part

    def run(
        self,
        variables: Any,
        rngs: dict[str, Array],
        num_layers: int,
        inputs: tuple[Array, Array | None, Array | None],
    ) -> tuple[Array, Any]:
        """Returns the output of the stack for a batch, and what its layers add to collections, by layer.

        Losses and metrics are means over micro-batches, updates of state are sums.

        Args:
          variables: arrays with a leading layer dimension, split over the axis.
          rngs: keys by name, for the batch. Each layer gets its own for each micro-batch.
          num_layers: number of layers.
          inputs: activations of shape (b, s, m), and segments and positions of shape (b, s).
        Raises:
          UsageError: the layers do not divide into stages and repeats.
        """
        stages, repeats = self.schedule.stages, self.schedule.repeats
        if num_layers % (stages * repeats):
            raise UsageError(
                f"The {num_layers} layers of a stack do not divide into {stages} stages with PIPELINE_REPEATS = "
                f"{repeats}. Change one of them."
            )
        split = P(self.axis)
        run_stages = jax.shard_map(
            self._on_stage,
            in_specs=(split, split, P(), split),
            out_specs=(split, P(None, self.axis)),
            axis_names={self.axis},
            check_vma=False,
        )
        x, added = run_stages(jnp.arange(stages), variables, rngs, inputs)
        return x, jax.tree.map(lambda leaf: leaf.reshape(num_layers, *leaf.shape[2:]), added)

    def _on_stage(self, numbers: Int[Array, "1"], variables: Any, rngs: Any, inputs: Any) -> tuple[Array, Any]:
        """Runs all ticks on one stage, whose inputs are a share of the batch's rows."""
        [stage] = numbers
        with staged(self.axis):
            parts = jax.tree.map(lambda w: by_repeat(w, self.axis, self.schedule, stage), variables)
            # Row r is in group r % groups, so that every device keeps its own rows.
            groups = self.schedule.groups
            slots = jax.tree.map(lambda x: x.reshape(-1, groups, *x.shape[1:]).swapaxes(0, 1), inputs)
            slots, totals = self._ticks(stage, self._work(stage, parts, rngs), slots)
        x = slots[0].swapaxes(0, 1)
        return x.reshape(-1, *x.shape[2:]), totals

    def _work(self, stage: Int[Array, ""], parts: Any, rngs: dict[str, Array]) -> Callable[..., tuple[Any, Any]]:
        """Returns the function of one tick: from repeat, micro-batch and its arrays to these and collections."""
        per_repeat = jax.tree.leaves(parts)[0].shape[1]

        def work(parts: Any, repeat: Any, microbatch: Any, stream: Any) -> tuple[Any, Any]:
            x, *others = stream
            first = (repeat * self.schedule.stages + stage) * per_repeat
            of_microbatch = {name: jax.random.fold_in(rng, microbatch) for name, rng in rngs.items()}

            def one(x: Any, of: Any) -> tuple[Any, Any]:
                variables, number = of
                own = {name: jax.random.fold_in(rng, first + number) for name, rng in of_microbatch.items()}
                return self.layer(variables, own, checkpoint_name(x, INPUT), *others)

            xs = at(parts, repeat), jnp.arange(per_repeat)
            x, added = jax.lax.scan(one, x, xs, unroll=min(self.unroll, per_repeat))
            return (x, *others), added

        def saved(primitive: Any, *arrays: Any, **parameters: Any) -> Any:
            return parameters.get("name") == INPUT or self.policy(primitive, *arrays, **parameters)

        return functools.partial(jax.checkpoint(work, policy=saved, prevent_cse=False), parts)

    def _ticks(self, stage: Int[Array, ""], work: Callable[..., tuple[Any, Any]], slots: Any) -> tuple[Any, Any]:
        """Runs all ticks: from the inputs of a stage's share of the micro-batches, by group, to their outputs.

        A group has one micro-batch of each stage. A register moves them towards the first stage, one in each tick, and
        outputs of the last stage in their place back to the stages that they came from.
        """
        schedule, stages = self.schedule, self.schedule.stages
        first = at(slots, 0)
        added = jax.eval_shape(work, 0, 0, first)[1]
        zeros = jax.tree.map(lambda leaf: jnp.zeros((schedule.repeats, *leaf.shape), leaf.dtype), added)
        back = lambda register: rotated(register, self.axis, stages, -1)

        def tick(carry: Any, number: Any) -> tuple[Any, None]:
            slots, register, stream, totals = carry
            repeat, microbatch, is_valid = schedule.at(number, stage)
            stream, added = work(repeat, microbatch, stream)
            before = at(totals, repeat)
            totals = put(totals, chosen(is_valid, add_updates(before, added), before), repeat)
            group, phase = jnp.divmod(number + 1, stages * schedule.repeats)
            register = chosen(phase == 0, at(slots, jnp.minimum(group, schedule.groups - 1)), register)
            is_new = (stage == 0) & (phase < stages)
            following = chosen(is_new, register, rotated(stream, self.axis, stages, 1))
            if schedule.repeats == 1:
                register = back(register)
            else:  # in other rounds nothing enters or leaves
                register = jax.lax.cond(phase < stages, back, lambda register: register, register)
            register = chosen(stage == stages - 1, stream, register)
            is_complete, done = (phase == stages - 1) & (group > 0), jnp.maximum(group - 1, 0)
            slots = put(slots, chosen(is_complete, register, at(slots, done)), done)
            return (slots, register, following, totals), None

        carry = (slots, back(first), first, zeros)
        (slots, _, _, totals), _ = jax.lax.scan(tick, carry, jnp.arange(schedule.ticks))
        mean = lambda tree: jax.tree.map(lambda leaf: leaf / schedule.microbatches, tree)
        return slots, {name: tree if name == UPDATES else mean(tree) for name, tree in totals.items()}


def at(tree: Any, index: Any) -> Any:
    """Returns the entry of each array at an index of its first dimension."""
    return jax.tree.map(lambda leaf: leaf[0 if leaf.shape[0] == 1 else index], tree)


def put(tree: Any, entries: Any, index: Any) -> Any:
    """Returns the arrays with these entries at an index of their first dimension."""
    return jax.tree.map(lambda leaf, entry: leaf.at[index].set(entry), tree, entries)


def chosen(condition: Any, some: Any, others: Any) -> Any:
    """Returns the arrays of `some` if the condition holds, else those of `others`."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), some, others)


def rotated(tree: Any, axis: str, stages: int, step: int) -> Any:
    """Returns the arrays of the stage `step` places before this one, in a ring."""
    ring = [(i, (i + step) % stages) for i in range(stages)]
    return jax.tree.map(lambda x: jax.lax.ppermute(x, axis, ring), tree)


def by_repeat(x: Array, axis: str, schedule: Schedule, stage: Int[Array, ""]) -> Array:
    """Exchanges the consecutive layers of a stage, which are stored there, for the R parts that it computes.

    Args:
      x: shape (R k, ...): of S R parts of k layers those from R i on, on stage i.
      axis: the mesh axis of stages.
      schedule: number of stages and repeats.
      stage: number of this stage.

    Returns:
      Shape (R, k, ...): parts i, S + i, 2 S + i, ...
    """
    x = x.reshape(schedule.repeats, -1, *x.shape[1:])
    if schedule.repeats == 1:
        return x
    sent, received = exchanges(schedule.stages, schedule.repeats)
    moved = []
    for part in sent:  # in each, every stage sends one part and receives one
        ring = [(i, int((i * schedule.repeats + j) % schedule.stages)) for i, j in enumerate(part)]
        moved.append(jax.lax.ppermute(x[jnp.asarray(part)[stage]], axis, ring))
    return jnp.stack(moved)[jnp.asarray(received)[stage]]


def exchanges(stages: int, repeats: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns permutations that deal out consecutive parts: what stages send, and the order of what they receive.

    Returns:
      Shape (R, S): which of its R parts stage i sends in each of R permutations. Shape (S, R): the permutation in which
      it receives its first part, its second, ...
    """
    common = math.gcd(stages, repeats)
    stage = np.arange(stages)
    # Part R i + j goes to stage (R i + j) % S. Equal R i % S recur after S / common stages, which send another part.
    sent = (np.arange(repeats)[:, None] + stage * common // stages) % repeats
    numbers = stage * repeats + sent
    received = np.zeros((stages, repeats), int)
    for permutation, of_stages in enumerate(numbers):
        received[of_stages % stages, of_stages // stages] = permutation
    return sent, received
