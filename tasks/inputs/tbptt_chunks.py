"""Rows in pieces for truncated backpropagation: consecutive batches continue the same rows."""

import dataclasses

import numpy as np

from tasks.batch import Batch
from tasks.inputs.indexed import Shard, WrappedInput


@dataclasses.dataclass(frozen=True, kw_only=True)
class TbpttInput(WrappedInput):
    """The rows of `source`, `seq_len` positions at a time: batch k is piece k % n of the source's batch k // n."""

    def __post_init__(self):
        super().__post_init__()
        if self.source.seq_len % self.seq_len or self.source.batch_size != self.batch_size:
            raise ValueError(
                f"seq_len must divide rows of {self.source.seq_len} positions and batch_size must be that of the "
                f"source, {self.source.batch_size} (got {self.seq_len} and {self.batch_size})"
            )

    @property
    def pieces(self) -> int:
        """Number of pieces in a row."""
        return self.source.seq_len // self.seq_len

    @property
    def fields(self) -> frozenset[str]:
        return self.source.fields | {"row_positions"}

    def batch(self, index: int, shard: Shard = Shard()) -> Batch:
        whole_index, piece = divmod(index, self.pieces)
        whole = self.source.batch(whole_index, shard)
        start = piece * self.seq_len
        cut = {
            field.name: array[:, start : start + self.seq_len]
            for field in dataclasses.fields(whole)
            if (array := getattr(whole, field.name)) is not None
        }
        places = np.arange(start, start + self.seq_len, dtype=np.int32)
        return Batch(**cut | {"row_positions": np.broadcast_to(places, cut["inputs"].shape)})

    def num_batches(self) -> int | None:
        whole = self.source.num_batches()
        return None if whole is None else whole * self.pieces

    def describe(self) -> str:
        return f"{self.source.describe()}, rows of {self.source.seq_len} in {self.pieces} pieces"
