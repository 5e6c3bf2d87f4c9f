"""Language model: embedding, stack of blocks, final norm, logits."""

from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from layers.auxiliary import check, place, watch
from layers.dropout import dropout
from layers.embedding import Embedding, Unembedding
from layers.head_qk import HeadQK, PointedFeatures, PointerState, add_pointed
from layers.positions.segments import SegmentIds, zero_padding
from layers.specs import Specs
from layers.stack import LayerStates, Segments, Stack


class ModelState(struct.PyTreeNode):
    """Decoding state of a language model: one state per layer, and the number of positions read."""

    layers: Any  # the mixers' states, stacked over layers
    index: Int[Array, ""]  # positions read so far
    pointer: PointerState | None = None  # state of the pointer head

    def stacked(self) -> "ModelState":
        """Returns the state with the layers' states stacked, the form between calls."""
        is_unstacked = lambda part: isinstance(part, LayerStates)
        restacked = lambda part: part.stacked() if is_unstacked(part) else part
        return self.replace(layers=jax.tree.map(restacked, self.layers, is_leaf=is_unstacked))

    @property
    def can_rewind(self) -> bool:
        """Whether all layers keep every position, so that the state can be rewound and moved."""
        parts = jax.tree.leaves((self.layers, self.pointer), is_leaf=_keeps_all)
        return all(_keeps_all(part) for part in parts)

    def rewound(self, count: Int[Array, ""] | int) -> "ModelState":
        """Returns the state before its last `count` positions; requires `can_rewind`."""
        back = lambda tree: jax.tree.map(lambda part: part.rewound(count), tree, is_leaf=_keeps_all)
        return ModelState(back(self.layers), self.index - count, back(self.pointer))

    def moved(self, count_b: Int[Array, " b"]) -> "ModelState":
        """Returns the state of rows that begin with `count_b` more padding and lack as many of their last positions."""
        move = lambda tree: jax.tree.map(lambda part: part.moved(count_b), tree, is_leaf=_keeps_all)
        return ModelState(move(self.layers), self.index, move(self.pointer))


def _keeps_all(part: Any) -> bool:
    """Returns whether a layer's state keeps every position in a slot of its own."""
    return hasattr(part, "rewound") and hasattr(part, "moved")


class LanguageModel(nn.Module):
    """Maps token ids to features (`__call__`) and features to logits (`logits`).

    They are separate so that a loss can compute logits in chunks (see layers.cross_entropy).
    """

    SPECS: ClassVar[tuple[str, ...]] = ("residual_bsm", "logits_bsv")

    activations: Specs
    embedding: Embedding
    positions: nn.Module | None  # added to the embedding; None for rotary or no positions
    stack: nn.Module
    final_norm: nn.Module | None
    head: Unembedding | None  # None ties the head to the embedding
    pointer: HeadQK | None = None  # raises logits of earlier tokens
    embedding_norm: nn.Module | None = None  # of the embedding, positions included
    mask_padding: bool = False  # zero the features at padding (segment id 0)
    dropout_rate: float = 0.0  # on the embedding
    max_length: int | None = None  # positions per row that the trained model is made for, if known; a limit of nothing

    def init_state(self, batch_size: int, capacity: int) -> ModelState:
        """Returns an empty state for `capacity` positions."""
        pointer = None if self.pointer is None else self.pointer.init_state(batch_size, capacity)
        return ModelState(self.stack.init_state(batch_size, capacity), jnp.int32(0), pointer)

    def unstack(self, variables: Any, state: ModelState) -> tuple[Any, ModelState]:
        """Returns variables and state unstacked by layer, for a loop that reads one token per step (Stack.unstack)."""
        if not isinstance(self.stack, Stack | Segments):
            return variables, state
        stack_variables = {name: tree["stack"] for name, tree in variables.items() if "stack" in tree}
        stack_variables, layers = self.stack.unstack(stack_variables, state.layers)
        merged = {
            name: {**tree, "stack": stack_variables[name]} if name in stack_variables else tree
            for name, tree in variables.items()
        }
        return merged, state.replace(layers=layers)

    def __call__(
        self,
        tokens: Int[Array, "b s"],
        state: ModelState | None = None,
        segment_ids: SegmentIds = None,
        positions: Int[Array, "b s"] | None = None,
    ) -> tuple[Float[Array, "b s m"] | PointedFeatures, ModelState | None]:
        """Returns features after the final norm, and the state after these tokens if one is given."""
        if positions is None:
            start = 0 if state is None else state.index
            positions = jnp.broadcast_to(start + jnp.arange(tokens.shape[1]), tokens.shape)
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions(positions).astype(x.dtype)
        x = x if self.embedding_norm is None else self.embedding_norm(x)
        x = place(self, "residual_bsm", dropout(self, watch(self, "embedded", x), self.dropout_rate))
        layers = None if state is None else state.layers
        x, layers = self.stack(x, layers, segment_ids, positions)
        x = x if self.final_norm is None else self.final_norm(x)
        check(self, "features", x)
        x = zero_padding(x, segment_ids) if self.mask_padding else x
        if self.is_initializing() and self.head is not None:
            self.head(x[:, :1])
        pointer = None if state is None else state.pointer
        if self.pointer is not None:
            x, pointer = self.pointer(x, tokens, pointer, segment_ids)
        if state is not None:
            state = ModelState(layers, state.index + tokens.shape[1], pointer)
        return x, state

    def logits(self, features: Float[Array, "b s m"] | PointedFeatures) -> Float[Array, "b s v"]:
        """Returns logits in float32."""
        x = features.x_bsm if isinstance(features, PointedFeatures) else features
        logits = self.embedding.attend(x) if self.head is None else self.head(x)
        if isinstance(features, PointedFeatures):
            logits = add_pointed(logits, features, self.activations)
        return place(self, "logits_bsv", logits)
