"""A stack of equal blocks whose weights carry a leading layer dimension."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from layers.collectives import keep_all_but_gathered, layers_are_gathered
from layers.errors import UsageError, did_you_mean
from layers.remat import REMAT_POLICIES

# Stacks are taken apart for a loop over tokens up to so many bytes of weights, which are copied, and so many layers,
# each of which is compiled.
APART_BYTES = 4 * 2**30
APART_LAYERS = 24


class LayerStates(struct.PyTreeNode):
    """States of layers one by one, for a loop that reads a token a turn.

    Out of a stacked state each turn would copy every layer's, and again into the stack behind it.
    """

    of_layer: tuple[Any, ...]

    def stacked(self) -> Any:
        """The state with a leading layer dimension."""
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *self.of_layer)


class Stack(nn.Module):
    """`num_layers` copies of `block`, run by a scan: compile time does not grow with depth (but see `apart`).

    `unroll` sets how many layers stand in one iteration; `num_layers` unrolls all. Weights, numbers and checkpoints are
    the same for every value. Weights have shape (num_layers, ...) and spec (None, ...).
    """

    block: nn.Module
    num_layers: int
    unroll: int = 1  # layers per iteration of the scan
    remat: str = "none"  # what the backward pass computes again; a name in REMAT_POLICIES

    def init_state(self, batch_size: int, capacity: int) -> Any:
        """The block's empty state, stacked over layers."""
        state = self.block.init_state(batch_size, capacity)
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (self.num_layers, *leaf.shape)), state)

    def apart(self, variables: Any, state: Any) -> tuple[Any, Any]:
        """The stack's own variables and state, layer by layer, as a loop over tokens reads them fastest.

        They stay as they are beyond APART_BYTES and APART_LAYERS.
        """
        weights = [leaf for tree in variables.values() for leaf in jax.tree.leaves(tree)]
        if self.num_layers > APART_LAYERS or sum(leaf.size * leaf.dtype.itemsize for leaf in weights) > APART_BYTES:
            return variables, state
        layers = range(self.num_layers)
        layer = lambda tree, i: jax.tree.map(lambda leaf: leaf[i], tree)
        numbered = {name: {f"block_{i}": layer(tree["block"], i) for i in layers} for name, tree in variables.items()}
        # Without the barrier the compiler slices anew in each turn of the loop.
        return jax.lax.optimization_barrier(numbered), LayerStates(tuple(layer(state, i) for i in layers))

    def _one_by_one(self, x: Any, state: LayerStates, *others: Any) -> tuple[Any, LayerStates]:
        block, after = self.block.clone(parent=None, name=None), []
        for number, before in enumerate(state.of_layer):
            of_layer = {name: tree[f"block_{number}"] for name, tree in self.variables.items()}
            result: Any = block.apply(of_layer, x, before, *others)
            x = result[0]
            after.append(result[1])
        return x, LayerStates(tuple(after))

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b s m"],
        state: Any = None,
        segment_ids: Int[Array, "b s"] | None = None,
        positions: Int[Array, "b s"] | None = None,
    ) -> tuple[Float[Array, "b s m"], Any]:
        """Runs all layers; `state` and the state returned have a leading layer dimension, or are LayerStates.

        Raises:
          UsageError: `remat` is no name of a policy.
        """
        if self.remat not in REMAT_POLICIES:
            raise UsageError(f"There is no remat policy '{self.remat}'. {did_you_mean(self.remat, REMAT_POLICIES)}")

        if self.num_layers < 1 or self.unroll < 1:
            raise UsageError(f"num_layers = {self.num_layers} and unroll = {self.unroll} must be at least 1.")
        if isinstance(state, LayerStates):
            return self._one_by_one(x, state, segment_ids, positions)

        def body(block, carry, layer_state, segment_ids, positions):
            return block(carry, layer_state, segment_ids, positions)

        policy = REMAT_POLICIES[self.remat]
        if policy is None and layers_are_gathered():
            policy = keep_all_but_gathered  # else the weights of all layers would be held whole for the way back
        if policy is not None:
            body = nn.remat(body, policy=policy, prevent_cse=self.unroll > 1)
        axes: Any = (0, nn.broadcast, nn.broadcast)
        run = nn.scan(
            body,
            variable_axes={True: 0},
            split_rngs={"params": True, "dropout": True, "sequence": True},
            in_axes=axes,
            length=self.num_layers,
            unroll=min(self.unroll, self.num_layers),
            metadata_params={nn.PARTITION_NAME: None},
        )
        return run(self.block, x, state, segment_ids, positions)
