"""Static SGU mixer: a fixed filter along the sequence for half of the channels, attention for the other half."""

from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from layers.errors import UsageError
from layers.positions.segments import SegmentIds, segment_numbers
from layers.specs import Specs


class SplitState(struct.PyTreeNode):
    """State of both halves: the filter's last inputs and their segments, and the attention's state."""

    window_bwm: Float[Array, "b w m"]
    segment_ids_bw: Int[Array, "b w"]  # -1 marks positions before the sequence
    mixer: Any


class StaticSguMixer(nn.Module):
    """Filters the first half of the channels along the sequence and mixes the second half by `mixer`.

    The filter has no weights and passes no gradient: y_i is the sum over distances t = 0 ... width of
    x_(i-t) / ((t + 1)^power + 1), within the segment. The model dimension of `mixer` is half of the channels.

    It is the "channel-split static SGU" of fattorib/transformer (2022) as its author intended it (that code computes a
    zero kernel), after the spatial gating unit of gMLP (Liu et al. 2021, section 2).
    """

    SPECS: ClassVar[tuple[str, ...]] = ()

    specs: Specs
    mixer: nn.Module
    width: int = 128  # greatest distance that the filter reads
    power: float = 1.0  # exponent of the decay with distance

    def init_state(self, batch_size: int, capacity: int) -> SplitState:
        """Returns an empty state."""
        half = self.mixer.model_dim
        window = jnp.zeros((batch_size, self.width, half), self.mixer.dtype)
        ids = jnp.full((batch_size, self.width), -1, jnp.int32)
        return SplitState(window, ids, self.mixer.init_state(batch_size, capacity))

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b s m"],
        state: SplitState | None = None,
        segment_ids: SegmentIds = None,
        positions: Int[Array, "b s"] | None = None,
    ) -> tuple[Float[Array, "b s m"], SplitState | None]:
        """Mixes along the sequence; with `state`, continues the sequence that the state holds.

        Raises:
          UsageError: the number of channels is odd, or `width` is below 1.
        """
        if x.shape[-1] % 2 or self.width < 1:
            raise UsageError(
                f"A static SGU needs an even number of channels (got {x.shape[-1]}) and a filter width of at "
                f"least 1 (got {self.width})."
            )
        filtered, attended = jnp.split(x, 2, axis=-1)
        filtered = jax.lax.stop_gradient(filtered)
        ids = segment_numbers(segment_ids, x.shape[:2])
        before = self.init_state(x.shape[0], 0) if state is None else state
        seen = jnp.concatenate([before.window_bwm.astype(x.dtype), filtered], axis=1)
        seen_ids = jnp.concatenate([before.segment_ids_bw, ids], axis=1)
        mixed, after = self.mixer(attended, None if state is None else state.mixer, segment_ids, positions)
        y = jnp.concatenate([self._filter(seen, seen_ids, ids), mixed], axis=-1)
        if state is None:
            return y, None
        return y, SplitState(seen[:, -self.width :], seen_ids[:, -self.width :], after)

    def _kernel(self, distance: Int[Array, "q t"]) -> Float[Array, "q t"]:
        inside = (distance >= 0) & (distance <= self.width)
        return jnp.where(inside, 1 / ((jnp.maximum(distance, 0) + 1.0) ** self.power + 1), 0)

    def _filter(self, seen: Float[Array, "b t m"], seen_ids: Int[Array, "b t"], ids: Int[Array, "b s"]) -> jax.Array:
        """Applies a banded matrix in blocks: each block of `width` positions reads itself and the block before."""
        length, width = ids.shape[1], self.width
        if length < width:
            distance = width + jnp.arange(length)[:, None] - jnp.arange(width + length)
            kernel_bqt = jnp.where(ids[:, :, None] == seen_ids[:, None], self._kernel(distance), 0)
            return jnp.einsum("bqt,btm->bqm", kernel_bqt.astype(seen.dtype), seen)
        blocks = -(-length // width)
        spare = blocks * width - length
        seen = jnp.pad(seen, ((0, 0), (0, spare), (0, 0)))
        seen_ids = jnp.pad(seen_ids, ((0, 0), (0, spare)), constant_values=-1)
        ids = jnp.pad(ids, ((0, 0), (0, spare)), constant_values=-2).reshape(ids.shape[0], blocks, width)
        windows = lambda a: jnp.concatenate(
            [part.reshape(a.shape[0], blocks, width, *a.shape[2:]) for part in (a[:, :-width], a[:, width:])], axis=2
        )
        distance = width + jnp.arange(width)[:, None] - jnp.arange(2 * width)
        same_bcqt = ids[..., None] == windows(seen_ids)[:, :, None]
        kernel = jnp.where(same_bcqt, self._kernel(distance), 0).astype(seen.dtype)
        y = jnp.einsum("bcqt,bctm->bcqm", kernel, windows(seen))
        return y.reshape(y.shape[0], -1, y.shape[-1])[:, :length]
