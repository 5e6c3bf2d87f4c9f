"""A stack of equal blocks whose weights carry a leading layer dimension."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from layers.errors import UsageError, did_you_mean
from layers.exchange import keep_all_but_gathered, layers_are_gathered

REMAT_POLICIES = {
    "none": None,  # keep every intermediate value for the backward pass
    "full": jax.checkpoint_policies.nothing_saveable,  # keep block inputs, compute the rest again
    "dots": jax.checkpoint_policies.dots_saveable,  # keep results of matrix products
    "dots_without_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,  # of those, the ones with weights
}


class Stack(nn.Module):
    """`num_layers` copies of `block`, run by a scan: compile time does not grow with depth.

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

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b s m"],
        state: Any = None,
        segment_ids: Int[Array, "b s"] | None = None,
        positions: Int[Array, "b s"] | None = None,
    ) -> tuple[Float[Array, "b s m"], Any]:
        """Runs all layers; `state` and the state returned have a leading layer dimension.

        Raises:
          UsageError: `remat` is no name of a policy.
        """
        if self.remat not in REMAT_POLICIES:
            raise UsageError(f"There is no remat policy '{self.remat}'. {did_you_mean(self.remat, REMAT_POLICIES)}")

        if self.num_layers < 1 or self.unroll < 1:
            raise UsageError(f"num_layers = {self.num_layers} and unroll = {self.unroll} must be at least 1.")

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
