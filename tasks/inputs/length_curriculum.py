"""Length curriculum: the length of rows grows in stages over the first batches."""

import dataclasses
from typing import Literal

import jax

from tasks.batch import Batch
from tasks.inputs.indexed import Shard, WrappedInput


@dataclasses.dataclass(frozen=True, kw_only=True)
class LengthCurriculumInput(WrappedInput):
    """The rows of `source`, shorter in the first `steps` batches (Press et al. 2021, Shortformer; Li et al. 2021).

    Batch k < steps belongs to stage k * n // steps of n and has rows of `lengths[stage]` positions: the beginnings of
    the source's rows, or all consecutive pieces of those rows. Later batches are those of the source. `batch_size` and
    `seq_len` are those of full rows.
    """

    lengths: tuple[int, ...]  # of rows in each stage; all stages are equally long
    steps: int  # batches of all stages together
    rows: Literal["truncate", "reshape"] = "truncate"  # drop the positions after the length, or make more rows of them

    def __post_init__(self):
        super().__post_init__()
        if (self.source.batch_size, self.source.seq_len) != (self.batch_size, self.seq_len):
            raise ValueError(
                f"batch_size and seq_len must be those of the source, {self.source.batch_size} and "
                f"{self.source.seq_len} (got {self.batch_size} and {self.seq_len})"
            )
        for length in self.lengths:
            if not 1 <= length <= self.seq_len:
                raise ValueError(f"a stage must have between 1 and seq_len = {self.seq_len} positions (got {length})")
            if self.rows == "reshape" and self.seq_len % length:
                raise ValueError(
                    f"a stage with rows = reshape must divide seq_len = {self.seq_len} (got {length} positions). "
                    f"Choose another length, or rows = truncate"
                )
        if not 1 <= len(self.lengths) <= self.steps:
            raise ValueError(f"lengths must have between 1 and steps = {self.steps} stages (got {len(self.lengths)})")

    @property
    def short_batches(self) -> int:
        return self.steps

    def length(self, index: int) -> int:
        """Returns the number of positions in the rows of batch `index`."""
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
