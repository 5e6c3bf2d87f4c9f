"""Inputs whose batch k is a function of k: any position is reached without reading what lies before it."""

import abc
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from layers.errors import UsageError
from tasks.batch import Batch


@dataclasses.dataclass(frozen=True)
class Shard:
    """The rows of each batch that one host reads: part `index` of `count` equal parts."""

    index: int = 0
    count: int = 1

    def rows(self, batch_size: int) -> range:
        """Row numbers of this part.

        Raises:
          UsageError: the parts would not be equal.
        """
        if batch_size % self.count:
            raise UsageError(f"A batch of {batch_size} rows cannot be shared by {self.count} hosts equally.")
        size = batch_size // self.count
        return range(self.index * size, (self.index + 1) * size)


class ByteCounts(NamedTuple):
    """How much text tokens stand for."""

    text: float  # bytes of the text itself
    counted: float  # what the vocabulary's `token_bytes` sum up to


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexedInput(abc.ABC):
    """A sequence of batches, addressed by number."""

    batch_size: int  # rows over all hosts, of a whole batch
    seq_len: int  # positions per whole row

    def __post_init__(self):
        for name in ("batch_size", "seq_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} must be at least 1")
        if getattr(self, "seed", 0) < 0:
            raise ValueError("seed must be at least 0")

    @abc.abstractmethod
    def batch(self, index: int, shard: Shard = Shard()) -> Batch:
        """The shard's rows of batch `index`: the same bits at every call, on every host count."""

    @abc.abstractmethod
    def num_batches(self) -> int | None:
        """Batches in one pass; None where they never end."""

    @property
    def short_batches(self) -> int:
        """How many batches at the beginning may be of other shapes than `batch_size` rows of `seq_len` positions."""
        return 0

    def shapes(self) -> list[tuple[int, int]]:
        """(rows, positions) of all batches that occur, each once, in order."""
        return [(self.batch_size, self.seq_len)]

    @property
    def fingerprint(self) -> str | None:
        """Changes when other data are read under the same names; None where they are made up or nobody knows."""
        return None

    @property
    def byte_counts(self) -> "ByteCounts | None":
        """Bytes of the split; None where the vocabulary counts them exactly, or nobody knows."""
        return None

    @property
    def byte_ratio(self) -> float:
        """Bytes of raw text per byte that the vocabulary's `token_bytes` counts, over the whole split.

        Above 1 where encoding loses bytes (white space, unknown characters, normalisation), below it where it adds
        some; bits per byte are divided by it.
        """
        counts = self.byte_counts
        return counts.text / counts.counted if counts is not None and counts.counted else 1.0

    def texts(self) -> Iterator[str]:
        """The text that rows are made of, in order and in pieces of the source's own: documents, lines.

        Raises:
          UsageError: the data are no text.
        """
        raise UsageError(f"{type(self).__name__}: this has no text that a vocabulary could be trained on.")

    def describe(self) -> str:
        """What is read, for a person."""
        return type(self).__name__

    def require_data(self) -> None:
        """Finds out early whether there is data to read; raises a UsageError where there is none, or too little."""
        return

    def snapshot(self, shard: Shard) -> dict[str, Any]:
        """What gets to the next batch quickly, as JSON; nothing where any batch is at hand."""
        return {}

    def resume(self, state: dict[str, Any], shard: Shard) -> None:
        """Goes on from an iterator's state, which holds what `snapshot` gave."""
        return

    def iterator(self, *shards: Shard) -> "InputIterator":
        """Batches from the first on, with a position that can be saved and restored.

        Args:
          shards: the parts of each batch to read, one behind the other; without any the whole batch.
        """
        return InputIterator(self, shards or (Shard(),))


@dataclasses.dataclass(frozen=True, kw_only=True)
class WrappedInput(IndexedInput):
    """An input whose batches are made of those of another one; its data are that one's."""

    source: IndexedInput

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

    def snapshot(self, shard: Shard) -> dict[str, Any]:
        return self.source.snapshot(shard)

    def resume(self, state: dict[str, Any], shard: Shard) -> None:
        self.source.resume(state, shard)


class RowInput(IndexedInput):
    """An input whose rows are numbered through: batch k has the rows from k times `batch_size` on."""

    @property
    @abc.abstractmethod
    def num_rows(self) -> int | None:
        """Rows in one pass; None where it never ends."""

    @abc.abstractmethod
    def row(self, number: int) -> Batch:
        """Row `number`, its arrays of shape (seq_len,): the same bits at every call."""

    def num_batches(self) -> int | None:
        return None if self.num_rows is None else -(-self.num_rows // self.batch_size)

    def batch(self, index: int, shard: Shard = Shard()) -> Batch:
        first = index * self.batch_size
        return self.stacked([first + row for row in shard.rows(self.batch_size)])

    def stacked(self, numbers: list[int]) -> Batch:
        """These rows as a batch; those behind the last one have weight 0."""
        rows = [self.row(number) for number in numbers if self.num_rows is None or number < self.num_rows]
        padding = len(numbers) - len(rows)
        if padding:
            rows += [jax.tree.map(np.zeros_like, rows[0] if rows else self.row(0))] * padding
        return jax.tree.map(lambda *arrays: np.stack(arrays), *rows)


class InputIterator(Iterator[Batch]):
    """Walks through an IndexedInput; `state()` fits in a JSON file."""

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
        """Where the iterator stands: the number of the next batch, what data it is of, and the input's `snapshot`.

        Of several parts no snapshot is kept: inputs that need one are read through.
        """
        data = self._source.fingerprint
        known = {} if data is None else {"data": data}
        taken = self._source.snapshot(self._shards[0]) if len(self._shards) == 1 else {}
        return {"next_batch": self._next, **known, **taken}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from `state`, without reading what lies before where the input can."""
        if len(self._shards) == 1:
            self._source.resume(state, self._shards[0])
        self._next = int(state["next_batch"])


def generator(*entropy: int) -> np.random.Generator:
    """Random numbers that follow from these integers alone (numpy's Philox, a counter-based generator)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy)))
