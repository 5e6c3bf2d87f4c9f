"""Windows of text as bytes."""

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np

from layers.errors import UsageError
from tasks.batch import Batch
from tasks.inputs.corpus import DOCUMENT_END, StandardLibrary, TextFile, stretches
from tasks.inputs.indexed import IndexedInput, Shard, generator


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextInput(IndexedInput):
    """Rows of `seq_len` bytes, each to be predicted from those before it.

    Shuffled, it never ends: every epoch cuts the text at a new offset into windows and visits each window once, in an
    order of its own, both from `seed` and the epoch's number. Not shuffled, it is one pass in order that predicts every
    byte but the first exactly once; rows beyond the end have weight 0.
    """

    path: str | None = None  # a text file; None is the source of Python's standard library
    split: str = "train"  # train, validation or test
    split_fractions: tuple[float, ...] = (0.9, 0.05, 0.05)  # how a file is cut, in this order
    shuffle: bool = True
    seed: int = 0
    max_rows: int | None = None  # without shuffling: take so many windows, evenly spaced over the split; None is all

    @functools.cached_property
    def data(self) -> np.ndarray:
        """The split's bytes.

        Raises:
          UsageError: there are too few for one window.
        """
        data = self.text_bytes()
        need = self.seq_len + 1 if self.shuffle else 2
        if len(data) < need:
            where = self.path or "the standard library"
            raise UsageError(
                f"The {self.split} split of '{where}' has {len(data)} bytes, fewer than the {need} needed."
            )
        return data

    def text_bytes(self) -> np.ndarray:
        """The split as it is read, uint8: behind each file of the standard library stands a zero byte."""
        source = StandardLibrary() if self.path is None else TextFile(self.path, tuple(self.split_fractions))
        return source.read(self.split)

    def texts(self) -> Iterator[str]:
        separator = DOCUMENT_END if self.path is None else b"\n"
        for stretch in stretches(self.text_bytes(), separator):
            for text in stretch.removesuffix(separator).split(separator):
                yield text.decode("utf-8", errors="replace")

    def describe(self) -> str:
        where = "the source of Python's standard library" if self.path is None else f"the text file '{self.path}'"
        return f"{where}, {len(self.data):,} bytes in its {self.split} split"

    def require_data(self) -> None:
        _ = self.data

    def num_batches(self) -> int | None:
        return None if self.shuffle else -(-self._pass_rows() // self.batch_size)

    def batch(self, index: int, shard: Shard = Shard()) -> Batch:
        rows = [index * self.batch_size + row for row in shard.rows(self.batch_size)]
        columns = [self._random_row(row) if self.shuffle else self._pass_row(row) for row in rows]
        inputs, targets, weights = (np.stack(column) for column in zip(*columns, strict=True))
        return Batch(inputs.astype(np.int32), targets.astype(np.int32), weights.astype(np.float32))

    def _random_row(self, row: int) -> tuple[np.ndarray, ...]:
        windows = max(1, (len(self.data) - 1) // self.seq_len - 1)
        epoch, number = divmod(row, windows)
        offset, order = _epoch(self.seed, epoch, windows, min(self.seq_len, len(self.data) - self.seq_len))
        start = offset + int(order[number]) * self.seq_len
        window = self.data[start : start + self.seq_len + 1]
        return window[:-1], window[1:], np.ones(self.seq_len)

    def _pass_rows(self) -> int:
        windows = -(-(len(self.data) - 1) // self.seq_len)
        return windows if self.max_rows is None else min(windows, self.max_rows)

    def _pass_row(self, row: int) -> tuple[np.ndarray, ...]:
        rows, windows = self._pass_rows(), -(-(len(self.data) - 1) // self.seq_len)
        start = (row * windows // rows) * self.seq_len if row < rows else len(self.data)
        window = self.data[start : start + self.seq_len + 1]
        predicted = max(0, len(window) - 1)
        window = np.pad(window, (0, self.seq_len + 1 - len(window)))
        return window[:-1], window[1:], np.arange(self.seq_len) < predicted


@functools.lru_cache(maxsize=4)
def _epoch(seed: int, epoch: int, windows: int, offsets: int) -> tuple[int, np.ndarray]:
    """Where an epoch's first window starts, and the order it visits its windows in."""
    rng = generator(seed, epoch)
    return int(rng.integers(offsets)), rng.permutation(windows)
