"""Batches: the arrays that an input passes to a task."""

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
from flax import struct


class Batch(struct.PyTreeNode):
    """One batch of token sequences; B rows, S positions.

    `inputs[b, s]` is read and `targets[b, s]` is to be predicted from inputs up to s. Rows that hold several segments
    number them from 1 in `segment_ids` (0 is padding) and restart `positions` in each. Both are None if every row is
    one segment, so that attention can use its fast causal path; `is_token` then marks its tokens if padding follows
    them, which layers that count positions exclude (codebooks, experts).
    """

    inputs: Any  # int32 (B, S)
    targets: Any  # int32 (B, S)
    weights: Any  # float32 (B, S): weight of each target in the loss, 0 for padding
    segment_ids: Any = None  # int32 (B, S) or None
    positions: Any = None  # int32 (B, S) or None
    is_token: Any = None  # bool (B, S) or None; never with segment_ids
    row_positions: Any = None  # int32 (B, S): position in the full row if rows are read in chunks (TBPTT), else None

    @property
    def segments(self) -> Any:
        """The `segment_ids` argument of models: layers.positions.segments.SegmentIds."""
        return self.is_token if self.segment_ids is None else self.segment_ids

    @property
    def real(self) -> Any:
        """bool (B, S): True at tokens; at positions with a weight, if nothing marks padding."""
        return self.weights > 0 if self.segments is None else self.segments != 0


# Fields of batches that are None if an input lacks them.
OPTIONAL_FIELDS = frozenset({"segment_ids", "positions", "is_token", "row_positions"})


def empty_batch(rows: int, length: int, fields: Collection[str] = ()) -> Batch:
    """Returns a batch of zero tokens with zero weights, for tracing; zeros are also in `fields` of OPTIONAL_FIELDS."""
    zeros = np.zeros((rows, length), np.int32)
    others = {name: zeros.astype(bool) if name == "is_token" else zeros for name in fields}
    return Batch(inputs=zeros, targets=zeros, weights=zeros.astype(np.float32), **others)


def fields_of_all(fields: Iterable[Collection[str]]) -> frozenset[str]:
    """Returns the optional fields of batches that contain rows of inputs with these fields."""
    found = frozenset[str]().union(*fields)
    return found - {"is_token"} if "segment_ids" in found else found


def with_fields(batch: Batch, fields: Collection[str]) -> Batch:
    """Returns a row or batch of numpy arrays with those of `fields` that mark its segments or padding."""
    if batch.segment_ids is not None or not {"segment_ids", "is_token"} & set(fields):
        return batch
    # Loss weights can be 0 at a prompt, but the last token has one.
    real = batch.is_token
    if real is None:
        real = np.cumsum(np.asarray(batch.weights)[..., ::-1] > 0, axis=-1)[..., ::-1] > 0
    if "segment_ids" not in fields:
        return batch.replace(is_token=real)
    positions = np.where(real, np.arange(real.shape[-1], dtype=np.int32), 0)
    return batch.replace(segment_ids=real.astype(np.int32), positions=positions, is_token=None)
