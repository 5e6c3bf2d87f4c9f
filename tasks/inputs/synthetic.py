"""Packed rows made up on the spot: several segments of random length in each, with a rule that can be learned."""

import dataclasses

import numpy as np

from tasks.batch import Batch
from tasks.inputs.indexed import RowInput, generator


@dataclasses.dataclass(frozen=True, kw_only=True)
class SyntheticPackedInput(RowInput):
    """Each segment counts up from a random token by a stride of its own, modulo the vocabulary.

    The stride shows in the first two tokens, so a model that looks back within the segment predicts the rest, and one
    that looks into other segments gains nothing. Rows hold as many whole segments as fit, then padding of weight 0.
    """

    vocab_size: int
    seed: int = 0
    mean_segment: int | None = None  # mean length of a segment; None is a third of the row
    max_stride: int = 4  # strides are 1 ... max_stride
    batches: int | None = None  # batches in one pass; None never ends
    offset: int = 0  # number of the first batch: splits of one seed stay apart by it

    def describe(self) -> str:
        return f"synthetic packed rows over {self.vocab_size} tokens"

    @property
    def num_rows(self) -> int | None:
        return None if self.batches is None else self.batches * self.batch_size

    def row(self, number: int) -> Batch:
        rng = generator(self.seed, self.offset * self.batch_size + number)
        mean = max(2, self.seq_len // 3 if self.mean_segment is None else self.mean_segment)
        inputs, targets, weights, segment_ids, positions = np.zeros((5, self.seq_len), np.int32)
        start, segment = 0, 1
        while start < self.seq_len:
            length = int(rng.integers(max(1, mean // 2), mean + mean // 2 + 1))
            if segment > 1 and start + length > self.seq_len:
                break
            length = min(length, self.seq_len - start)
            tokens = (
                rng.integers(self.vocab_size) + rng.integers(1, self.max_stride + 1) * np.arange(length + 1)
            ) % self.vocab_size
            here = slice(start, start + length)
            inputs[here], targets[here] = tokens[:-1], tokens[1:]
            weights[here], segment_ids[here], positions[here] = 1, segment, np.arange(length)
            start, segment = start + length, segment + 1
        return Batch(inputs, targets, weights.astype(np.float32), segment_ids, positions)
