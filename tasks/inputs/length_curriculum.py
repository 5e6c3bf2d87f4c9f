"""Short rows first: the length of rows grows in stages over the first batches."""

import dataclasses
from typing import Literal

import jax

from tasks.batch import Batch
from tasks.inputs.indexed import Shard, WrappedInput


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagedInput(WrappedInput):
    """The rows of `source`, shorter in the first `steps` batches (Press et al. 2021, Shortformer; Li et al. 2021).

    Batch k < steps belongs to stage k * n // steps of n and has rows of `lengths[stage]` positions: the beginnings of
    the source's rows, or those rows cut into several, one behind the other. All later batches are the source's own.
    `batch_size` and `seq_len` are those of whole rows.
    """

    lengths: tuple[int, ...]  # of rows in each stage; all stages are equally long
    steps: int  # batches of all stages together
    rows: Literal["truncate", "reshape"] = "truncate"  # drop what is behind the length, or make more rows of it

    def __post_init__(self):
        super().__post_init__()
        if (self.source.batch_size, self.source.seq_len) != (self.batch_size, self.seq_len):
            raise ValueError(
                f"whole rows are {self.batch_size} of {self.seq_len} positions, but those of the source "
                f"{self.source.batch_size} of {self.source.seq_len}"
            )
        for length in self.lengths:
            if not 1 <= length <= self.seq_len:
                raise ValueError(f"a stage of {length} positions must lie between 1 and whole rows of {self.seq_len}")
            if self.rows == "reshape" and self.seq_len % length:
                raise ValueError(
                    f"a stage of {length} positions does not divide rows of {self.seq_len}, which are to be reshaped: "
                    f"choose another length, or truncate them"
                )
        if not 1 <= len(self.lengths) <= self.steps:
            raise ValueError(f"{self.steps} steps cannot be {len(self.lengths)} stages")

    @property
    def short_batches(self) -> int:
        return self.steps

    def length(self, index: int) -> int:
        """Positions of the rows of batch `index`."""
        return self.lengths[index * len(self.lengths) // self.steps] if index < self.steps else self.seq_len

    def shapes(self) -> list[tuple[int, int]]:
        pieces = lambda length: self.seq_len // length if self.rows == "reshape" else 1
        lengths = dict.fromkeys((*self.lengths, self.seq_len))
        return [(self.batch_size * pieces(length), length) for length in lengths]

    def batch(self, index: int, shard: Shard = Shard()) -> Batch:
        whole, length = self.source.batch(index, shard), self.length(index)
        if self.rows == "reshape":
            return jax.tree.map(lambda array: array.reshape(-1, length), whole)
        return jax.tree.map(lambda array: array[:, :length], whole)

    def describe(self) -> str:
        stages = ", ".join(map(str, self.lengths))
        how = "cut to" if self.rows == "truncate" else "divided into"
        return f"{self.source.describe()}, rows {how} {stages} in the first {self.steps} updates"
