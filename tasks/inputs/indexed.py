"""Inputs whose batch k is a function of k: any position is reached without reading the batches before it."""

import abc
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from layers.errors import UsageError
from tasks.batch import OPTIONAL_FIELDS, Batch


@dataclasses.dataclass(frozen=True)
class Shard:
    """The rows of each batch that one host reads: part `index` of `count` equal parts."""

    index: int = 0
    count: int = 1

    def rows(self, batch_size: int) -> range:
        """Returns the row numbers of this part.

        Raises:
          UsageError: `batch_size` is not a multiple of `count`.
        """
        if batch_size % self.count:
            raise UsageError(
                f"A batch of {batch_size} rows cannot be split equally over {self.count} hosts. "
                f"Choose a multiple of {self.count}."
            )
        size = batch_size // self.count
        return range(self.index * size, (self.index + 1) * size)


class ByteCounts(NamedTuple):
    """Amount of text that tokens represent, in bytes."""

    text: float  # bytes of the text itself
    counted: float  # sum of the vocabulary's `token_bytes`


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexedInput(abc.ABC):
    """A sequence of batches, addressed by number."""

    batch_size: int  # rows of a full batch, over all hosts
    seq_len: int  # positions of a full row

    def __post_init__(self):
        for name in ("batch_size", "seq_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1 (got {getattr(self, name)})")
        if (seed := getattr(self, "seed", 0)) < 0:
            raise ValueError(f"seed must be at least 0 (got {seed})")

    @abc.abstractmethod
    def batch(self, index: int, shard: Shard = Shard()) -> Batch:
        """Returns the shard's rows of batch `index`: the same bits at every call, for any number of hosts."""

    @abc.abstractmethod
    def num_batches(self) -> int | None:
        """Returns the number of batches in one pass; None if the input is infinite."""

    @property
    def short_batches(self) -> int:
        """Number of first batches that may have other shapes than `batch_size` rows of `seq_len` positions."""
        return 0

    def shapes(self) -> list[tuple[int, int]]:
        """Returns the distinct (rows, positions) of all batches, in order."""
        return [(self.batch_size, self.seq_len)]

    @property
    def fields(self) -> frozenset[str]:
        """Names in OPTIONAL_FIELDS that its batches have; the first batch is read if the class does not know them."""
        batch = self.batch(0, Shard(0, self.batch_size))
        return frozenset(name for name in OPTIONAL_FIELDS if getattr(batch, name) is not None)

    @property
    def fingerprint(self) -> str | None:
        """A string that changes when the data change under the same names; None if data are synthetic or unknown."""
        return None

    def fingerprint_of(self, batches: int) -> str | None:
        """Returns the fingerprint of the data that the first `batches` batches are read from."""
        del batches
        return self.fingerprint

    @property
    def borders(self) -> tuple[int, ...]:
        """Numbers of batches after which another phase of the run begins, ascending; empty without phases."""
        return ()

    @property
    def byte_counts(self) -> "ByteCounts | None":
        """Bytes of the split; None if the vocabulary counts them exactly, or if they are unknown."""
        return None

    @property
    def byte_ratio(self) -> float:
        """Bytes of raw text per byte that the vocabulary's `token_bytes` counts, over the complete split.

        Above 1 if encoding loses bytes (white space, unknown characters, normalization), below 1 if it adds bytes. Bits
        per byte are divided by it.
        """
        counts = self.byte_counts
        return counts.text / counts.counted if counts is not None and counts.counted else 1.0

    def texts(self) -> Iterator[str]:
        """Yields the text that rows are made of, in order, in units of the source: documents or lines.

        Raises:
          UsageError: the data are not text.
        """
        raise UsageError(f"{type(self).__name__} has no text to train a vocabulary on.")

    def describe(self) -> str:
        """Returns a description of the data for messages."""
        return type(self).__name__

    def require_data(self) -> None:
        """Checks before the first batch that there is enough data to read; raises a UsageError otherwise."""
        return

    def snapshot(self, shard: Shard, next_batch: int) -> dict[str, Any]:
        """Returns JSON-serializable state that speeds up resuming at `next_batch`; empty if none is needed."""
        return {}

    def resume(self, state: dict[str, Any], shard: Shard) -> None:
        """Resumes from an iterator's state, which includes the result of `snapshot`."""
        return

    def iterator(self, *shards: Shard) -> "InputIterator":
        """Returns an iterator from the first batch on, whose position can be saved and restored.

        Args:
          shards: the parts of each batch to read, concatenated in this order; none means the complete batch.
        """
        return InputIterator(self, shards or (Shard(),))


@dataclasses.dataclass(frozen=True, kw_only=True)
class WrappedInput(IndexedInput):
    """An input that derives its batches from those of another input, `source`; the data are the same."""

    source: IndexedInput

    @property
    def fields(self) -> frozenset[str]:
        return self.source.fields

    @property
    def fingerprint(self) -> str | None:
        return self.source.fingerprint

    @property
    def byte_counts(self) -> ByteCounts | None:
        return self.source.byte_counts

    def num_batches(self) -> int | None:
        return self.source.num_batches()

    def require_data(self) -> None:
        self.source.require_data()

    def texts(self) -> Iterator[str]:
        return self.source.texts()

    def snapshot(self, shard: Shard, next_batch: int) -> dict[str, Any]:
        return self.source.snapshot(shard, next_batch)

    def resume(self, state: dict[str, Any], shard: Shard) -> None:
        self.source.resume(state, shard)


class RowInput(IndexedInput):
    """An input with numbered rows: batch k has rows k * batch_size ... (k + 1) * batch_size - 1."""

    @property
    @abc.abstractmethod
    def num_rows(self) -> int | None:
        """Rows in one pass; None if the input is infinite."""

    @abc.abstractmethod
    def row(self, number: int) -> Batch:
        """Returns row `number`, with arrays of shape (seq_len,): the same bits at every call."""

    def num_batches(self) -> int | None:
        return None if self.num_rows is None else -(-self.num_rows // self.batch_size)

    def batch(self, index: int, shard: Shard = Shard()) -> Batch:
        first = index * self.batch_size
        return self.stacked([first + row for row in shard.rows(self.batch_size)])

    def stacked(self, numbers: list[int]) -> Batch:
        """Returns these rows as a batch; rows after the last one are padding of weight 0."""
        rows = [self.row(number) for number in numbers if self.num_rows is None or number < self.num_rows]
        padding = len(numbers) - len(rows)
        if padding:
            rows += [jax.tree.map(np.zeros_like, rows[0] if rows else self.row(0))] * padding
        return jax.tree.map(lambda *arrays: np.stack(arrays), *rows)


class InputIterator(Iterator[Batch]):
    """Iterates over an IndexedInput; `state()` is JSON-serializable."""

    def __init__(self, source: IndexedInput, shards: Sequence[Shard]):
        self._source, self._shards, self._next = source, shards, 0

    def __next__(self) -> Batch:
        end = self._source.num_batches()
        if end is not None and self._next >= end:
            raise StopIteration
        parts = [self._source.batch(self._next, shard) for shard in self._shards]
        self._next += 1
        return parts[0] if len(parts) == 1 else jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts)

    def state(self) -> dict[str, Any]:
        """Returns the position: the number of the next batch, the data's fingerprint, and the input's `snapshot`.

        Without a snapshot if there are several shards: inputs that need one are then read from the start.
        """
        data = self._source.fingerprint_of(self._next)
        known = {} if data is None else {"data": data}
        snapshot = self._source.snapshot(self._shards[0], self._next) if len(self._shards) == 1 else {}
        return {"next_batch": self._next, **known, **snapshot}

    def restore(self, state: dict[str, Any]) -> None:
        """Resumes from `state`, without reading the earlier batches if the input supports it."""
        if len(self._shards) == 1:
            self._source.resume(state, self._shards[0])
        self._next = int(state["next_batch"])


def generator(*entropy: int) -> np.random.Generator:
    """Returns a random generator seeded by these integers only (numpy's Philox, a counter-based generator)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy)))
