"""Residual block: a sequence mixer and a feed-forward layer, sequential or parallel."""

from collections.abc import Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from layers.auxiliary import place, watch
from layers.dropout import dropout
from layers.errors import UsageError
from layers.positions.segments import SegmentIds, zero_padding
from layers.specs import Specs


class ResidualBlock(nn.Module):
    """Residual block of a mixer and a feed-forward layer.

    Sequential (Xiong et al. 2020, figure 1b): `x += mixer(norm(x)); x += ffn(norm(x))`.
    Parallel (Wang and Komatsuzaki 2021, GPT-J): `x += mixer(norm(x)) + ffn(norm(x))`, each with its own norm, or one
    shared norm if `ffn_norm` is None. Without `ffn`, the block is the mixer alone, as in gated attention units.
    `mixer_post_norm` and `ffn_post_norm` normalize the outputs of branches: in addition to the norms of their inputs
    (Ding et al. 2021, CogView, sandwich norm), or instead of them (Team OLMo 2025, OLMo 2, section 3.3).
    """

    SPECS: ClassVar[tuple[str, ...]] = ("residual_bsm",)

    activations: Specs
    mixer_norm: nn.Module | None
    mixer: nn.Module  # implements the state interface: (x, state, segment_ids, positions) -> (y, state)
    ffn_norm: nn.Module | None
    ffn: nn.Module | None  # (x, segment_ids) -> y
    parallel: bool = False
    mask_padding: bool = False  # set the stream to zero at padding (segment id 0) before each branch
    dropout_rate: float = 0.0  # on the output of each branch before it is added to the residual stream
    mixer_post_norm: nn.Module | None = None  # of the mixer's output, before it is added
    ffn_post_norm: nn.Module | None = None  # of the feed-forward layer's output, before it is added
    layer_drop_rate: float = 0.0  # rate of dropped branches, per row and its sequence (Fan et al. 2020, LayerDrop)

    def init_state(self, batch_size: int, capacity: int) -> Any:
        """Returns the mixer's empty state."""
        return self.mixer.init_state(batch_size, capacity)

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b s m"],
        state: Any = None,
        segment_ids: SegmentIds = None,
        positions: Int[Array, "b s"] | None = None,
    ) -> tuple[Float[Array, "b s m"], Any]:
        if self.mask_padding:
            x = zero_padding(x, segment_ids)
        normed = watch(self, "mixer_in", x if self.mixer_norm is None else self.mixer_norm(x))
        result = self.mixer(normed, state, segment_ids, positions)
        if not isinstance(result, tuple) or len(result) != 2:
            raise UsageError(f"{type(self.mixer).__name__} must return (y, state) (got {type(result).__name__}).")
        mixed, state = result
        mixed = mixed if self.mixer_post_norm is None else self.mixer_post_norm(mixed)
        mixed = self._dropped(watch(self, "mixer_out", mixed))
        if self.ffn is None:
            x = x + mixed
        elif self.parallel:
            fed = self._fed(normed if self.ffn_norm is None else self.ffn_norm(x), segment_ids)
            x = x + mixed + fed
        else:
            x = place(self, "residual_bsm", x + mixed)
            if self.mask_padding:
                x = zero_padding(x, segment_ids)
            x = x + self._fed(x if self.ffn_norm is None else self.ffn_norm(x), segment_ids)
        return place(self, "residual_bsm", x), state

    def _fed(self, x: Float[Array, "b s m"], segment_ids: SegmentIds) -> Float[Array, "b s m"]:
        assert self.ffn is not None
        fed = self.ffn(watch(self, "ffn_in", x), segment_ids)
        fed = fed if self.ffn_post_norm is None else self.ffn_post_norm(fed)
        return self._dropped(watch(self, "ffn_out", fed))

    def _dropped(self, branch: Float[Array, "b s m"]) -> Float[Array, "b s m"]:
        branch = dropout(self, branch, self.dropout_rate)
        if self.layer_drop_rate == 0:
            return branch
        return branch * dropout(self, jnp.ones((branch.shape[0], 1, 1), branch.dtype), self.layer_drop_rate, "sequence")


class Chain(nn.Module):
    """A sequence of different blocks as one block: the unit that a Stack repeats if layers alternate."""

    blocks: tuple[nn.Module, ...]  # each implements the state interface

    def init_state(self, batch_size: int, capacity: int) -> Any:
        """Returns the blocks' empty states, in order."""
        return tuple(block.init_state(batch_size, capacity) for block in self.blocks)

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b s m"],
        state: Any = None,
        segment_ids: SegmentIds = None,
        positions: Int[Array, "b s"] | None = None,
    ) -> tuple[Float[Array, "b s m"], Any]:
        return in_sequence(self.blocks, x, state, segment_ids, positions)


def in_sequence(modules: Sequence[nn.Module], x: Any, state: Any, *others: Any) -> tuple[Any, Any]:
    """Runs modules with the state interface one after another; `state` has one state per module, or is None."""
    states = []
    for index, module in enumerate(modules):
        run: Any = module
        x, after = run(x, None if state is None else state[index], *others)
        states.append(after)
    return x, None if state is None else tuple(states)
