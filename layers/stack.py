"""Stacks of equal blocks whose weights have a leading layer dimension, and sequences of such stacks."""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from layers.auxiliary import CHECKED, LOSSES, METRICS, UPDATES, WATCHED
from layers.block import in_sequence
from layers.collectives import keep_all_but_gathered, layers_are_gathered
from layers.errors import UsageError, did_you_mean
from layers.pipeline import Pipeline, Schedule, Stages
from layers.platform import products_are_counted
from layers.positions.segments import SegmentIds
from layers.remat import REMAT_POLICIES, named_for

# Limits for unstacking a stack in a decoding loop: bytes of weights, which are copied, and number of layers, each of
# which is compiled.
UNSTACK_MAX_BYTES = 4 * 2**30
UNSTACK_MAX_LAYERS = 24


class LayerStates(struct.PyTreeNode):
    """States of separate layers, for a loop that reads one token per step.

    With a stacked state each step would copy every layer's state out of the stack and back into it. Arrays are without
    dimensions of one element: with them XLA would copy the caches of a single row (layers.attention.key_value_cache).
    """

    of_layer: tuple[Any, ...]
    shapes: tuple[tuple[int, ...], ...] = struct.field(pytree_node=False)  # of a layer's arrays, complete

    @classmethod
    def of(cls, states: Sequence[Any]) -> "LayerStates":
        """Returns the states of layers with equal shapes."""
        small = lambda x: x.reshape([size for size in x.shape if size != 1])
        return cls(jax.tree.map(small, tuple(states)), tuple(leaf.shape for leaf in jax.tree.leaves(states[0])))

    def complete(self) -> list[Any]:
        """Returns the state of each layer, as the layer reads it."""
        structure = jax.tree.structure(self.of_layer[0])
        complete = lambda leaves: [leaf.reshape(shape) for leaf, shape in zip(leaves, self.shapes, strict=True)]
        return [structure.unflatten(complete(jax.tree.leaves(state))) for state in self.of_layer]

    def stacked(self) -> Any:
        """Returns the state with a leading layer dimension."""
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *self.complete())


class Stack(nn.Module):
    """Runs `num_layers` copies of `block` in a scan: compile time does not grow with depth (except after `unstack`).

    `unroll` sets the number of layers per iteration; `num_layers` unrolls all. Weights, results and checkpoints are
    equal for all values. Weights have shape (num_layers, ...) and spec (None, ...), or with a pipeline its axis first.
    A pipeline runs batches without a state; a state passes through all layers on each device.
    """

    block: nn.Module
    num_layers: int
    unroll: int = 1  # layers per iteration of the scan
    remat: str = "none"  # what the backward pass recomputes; a name in REMAT_POLICIES
    pipeline: Pipeline | None = None  # splits the layers over a mesh axis

    def init_state(self, batch_size: int, capacity: int) -> Any:
        """Returns the block's empty state, stacked over layers."""
        state = self.block.init_state(batch_size, capacity)
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (self.num_layers, *leaf.shape)), state)

    def unstack(self, variables: Any, state: Any) -> tuple[Any, Any]:
        """Returns the stack's variables and state unstacked by layer, the fastest form for a loop over tokens.

        Above UNSTACK_MAX_BYTES or UNSTACK_MAX_LAYERS they are returned unchanged.
        """
        weights = [leaf for tree in variables.values() for leaf in jax.tree.leaves(tree)]
        if (
            self.num_layers > UNSTACK_MAX_LAYERS
            or sum(leaf.size * leaf.dtype.itemsize for leaf in weights) > UNSTACK_MAX_BYTES
        ):
            return variables, state
        layers = range(self.num_layers)
        layer = lambda tree, i: jax.tree.map(lambda leaf: leaf[i], tree)
        numbered = {name: {f"block_{i}": layer(tree["block"], i) for i in layers} for name, tree in variables.items()}
        # Without the barrier the compiler slices again in each step of the loop.
        return jax.lax.optimization_barrier(numbered), LayerStates.of([layer(state, i) for i in layers])

    def _run_unstacked(self, x: Any, state: LayerStates, *others: Any) -> tuple[Any, LayerStates]:
        block, after = self.block.clone(parent=None, name=None), []
        for number, before in enumerate(state.complete()):
            of_layer = {name: tree[f"block_{number}"] for name, tree in self.variables.items()}
            result: Any = block.apply(of_layer, x, before, *others)
            x = result[0]
            after.append(result[1])
        return x, LayerStates.of(after)

    def _schedule(self, rows: int, state: Any) -> Schedule | None:
        """Returns the schedule of the pipeline; None if layers run one after another."""
        if self.pipeline is None or state is not None or self.is_initializing():
            return None
        if any(self.is_mutable_collection(name) for name in (WATCHED, CHECKED)):
            return None
        return None if products_are_counted() else self.pipeline.schedule(rows)

    def _run_pipelined(self, schedule: Schedule, policy: Any, x: Any, *others: Any) -> Any:
        assert self.pipeline is not None
        block = self.block.clone(parent=None, name=None)
        collected = [name for name in (LOSSES, METRICS, UPDATES) if self.is_mutable_collection(name)]
        rngs = {name: self.make_rng(name) for name in ("dropout", "sequence") if self.has_rng(name)}

        def layer(variables: Any, rngs: Any, x: Any, *others: Any) -> tuple[Any, Any]:
            with jax.named_scope("block"):
                result: Any = block.apply(variables, x, None, *others, rngs=rngs, mutable=collected)
            (x, _), added = result
            return x, added

        if policy is None:  # saving everything would save a copy of the weights in each tick
            policy = jax.checkpoint_policies.dots_saveable
        else:
            layer = jax.checkpoint(layer, policy=policy, prevent_cse=False)
        variables = {name: tree["block"] for name, tree in self.variables.items() if "block" in tree}
        stages = Stages(axis=self.pipeline.axis, schedule=schedule, layer=layer, policy=policy, unroll=self.unroll)
        with named_for(self.remat):
            x, added = stages.run(variables, rngs, self.num_layers, (x, *others))
        for name, tree in added.items():
            self.put_variable(name, "block", tree)
        return x

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b s m"],
        state: Any = None,
        segment_ids: SegmentIds = None,
        positions: Int[Array, "b s"] | None = None,
    ) -> tuple[Float[Array, "b s m"], Any]:
        """Runs all layers; `state` and the returned state have a leading layer dimension, or are LayerStates.

        Raises:
          UsageError: `remat` is unknown, or a number of layers is below 1.
        """
        if self.remat not in REMAT_POLICIES:
            raise UsageError(f"Unknown remat policy '{self.remat}'. {did_you_mean(self.remat, REMAT_POLICIES)}")

        if self.num_layers < 1 or self.unroll < 1:
            raise UsageError(f"num_layers and unroll must be at least 1 (got {self.num_layers} and {self.unroll}).")
        if isinstance(state, LayerStates):
            return self._run_unstacked(x, state, segment_ids, positions)

        def body(block, carry, layer_state, segment_ids, positions):
            return block(carry, layer_state, segment_ids, positions)

        policy = REMAT_POLICIES[self.remat]
        schedule = self._schedule(x.shape[0], state)
        if schedule is not None:
            return self._run_pipelined(schedule, policy, x, segment_ids, positions), None
        if policy is None and layers_are_gathered():
            policy = keep_all_but_gathered  # otherwise the backward pass would store the gathered weights of all layers
        if policy is not None:
            body = nn.remat(body, policy=policy, prevent_cse=self.unroll > 1)
        axes: Any = (0, nn.broadcast, nn.broadcast)
        run = nn.scan(
            body,
            variable_axes={True: 0},
            split_rngs={"params": True, "dropout": True, "sequence": True},
            in_axes=axes,
            length=self.num_layers,
            unroll=1 if self.is_initializing() else min(self.unroll, self.num_layers),  # compiles initializers once
            metadata_params={nn.PARTITION_NAME: None if self.pipeline is None else self.pipeline.axis},
        )
        with named_for(self.remat):
            return run(self.block, x, state, segment_ids, positions)


class Segments(nn.Module):
    """Stacks of different blocks, one after another: a pattern over layers and its remainder, or first layers apart."""

    stacks: tuple[Stack, ...]

    def init_state(self, batch_size: int, capacity: int) -> Any:
        """Returns the stacks' empty states, in order."""
        return tuple(stack.init_state(batch_size, capacity) for stack in self.stacks)

    def unstack(self, variables: Any, state: Any) -> tuple[Any, Any]:
        """Returns variables and states of all stacks unstacked by layer (Stack.unstack)."""
        merged: dict[str, Any] = {name: {} for name in variables}
        states = []
        for index, stack in enumerate(self.stacks):
            part = f"stacks_{index}"
            own, after = stack.unstack(
                {name: tree[part] for name, tree in variables.items() if part in tree}, state[index]
            )
            for name, tree in own.items():
                merged[name][part] = tree
            states.append(after)
        return merged, tuple(states)

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b s m"],
        state: Any = None,
        segment_ids: SegmentIds = None,
        positions: Int[Array, "b s"] | None = None,
    ) -> tuple[Float[Array, "b s m"], Any]:
        return in_sequence(self.stacks, x, state, segment_ids, positions)


def stacks_of(task: Any) -> tuple[Stack, ...]:
    """Returns the stacks of a task's model, in order; none if a user's model has its layers in another form."""
    module = getattr(getattr(task, "model", None), "stack", None)
    if isinstance(module, Segments):
        return module.stacks
    return (module,) if isinstance(module, Stack) else ()
