"""Batches: the arrays that an input passes to a task."""

from collections.abc import Collection
from typing import Any

import numpy as np
from flax import struct


class Batch(struct.PyTreeNode):
    """One batch of token sequences; B rows, S positions.

    `inputs[b, s]` is read and `targets[b, s]` is to be predicted from inputs up to s. Rows that hold several segments
    number them from 1 in `segment_ids` (0 is padding) and restart `positions` in each. Both are None if every row is
    one segment, so that attention can use its fast causal path.
    """

    inputs: Any  # int32 (B, S)
    targets: Any  # int32 (B, S)
    weights: Any  # float32 (B, S): weight of each target in the loss, 0 for padding
    segment_ids: Any = None  # int32 (B, S) or None
    positions: Any = None  # int32 (B, S) or None
    row_positions: Any = None  # int32 (B, S): position in the full row if rows are read in chunks (TBPTT), else None


OPTIONAL_FIELDS = frozenset({"segment_ids", "positions", "row_positions"})  # of batches; None if an input lacks them


def empty_batch(rows: int, length: int, fields: Collection[str] = ()) -> Batch:
    """Returns a batch of zero tokens with zero weights, for tracing; zeros are also in `fields` of OPTIONAL_FIELDS."""
    zeros = np.zeros((rows, length), np.int32)
    return Batch(inputs=zeros, targets=zeros, weights=zeros.astype(np.float32), **dict.fromkeys(fields, zeros))
