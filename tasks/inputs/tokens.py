"""Token ids of a split as one long memory-mapped array, with the ends of its documents."""

import functools
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from layers.errors import UsageError
from tasks.inputs.indexed import ByteCounts

CHUNK = 1 << 24  # ids searched at a time
SAMPLE = 1024  # ids that a fingerprint reads in each of three places


class Tokens:
    """Concatenated pieces of ids as one array, read on demand."""

    def __init__(
        self,
        pieces: Sequence[Any],
        ends: Sequence[Any] | None = None,
        *,
        stop_id: int | None = None,
        start_id: int | None = None,
        stops_end: bool = True,
        offset: int = 0,
        byte_counts: ByteCounts | None = None,
        vocabulary_size: int | None = None,
        name: str = "tokens",
    ):
        """Builds the array from pieces in order.

        Args:
          pieces: integer arrays (n,), numpy arrays or objects whose slices are numpy arrays.
          ends: for each piece, the ends of its documents, exclusive, ascending; None if stop tokens mark the ends.
          stop_id: the token that ends a document; None if the ids are not divided into documents.
          start_id: the token from which a document's first one is predicted; None is the stop token.
          stops_end: whether the stop token is at the end of every document and nowhere else.
          offset: added to every stored id.
          byte_counts: see `IndexedInput.byte_counts`.
          vocabulary_size: upper bound of the ids, checked when they are read; None checks nothing.
          name: subject of error messages.
        """
        self.stop_id, self.byte_counts = stop_id, byte_counts
        self.first_id = stop_id if start_id is None else start_id
        self._pieces, self._ends, self._offset, self._stops_end = list(pieces), ends, offset, stops_end
        self._vocabulary_size, self._name = vocabulary_size, name
        self._bounds = np.cumsum([0, *(len(piece) for piece in self._pieces)])

    def __len__(self) -> int:
        return int(self._bounds[-1])

    @property
    def has_documents(self) -> bool:
        """Whether the ends of documents are known."""
        return self._ends is not None or self.stop_id is not None

    def read(self, start: int, stop: int) -> np.ndarray:
        """Returns ids start ... stop - 1, int32; fewer if the array ends before.

        Raises:
          UsageError: an id is not in the vocabulary.
        """
        start, stop = max(0, start), min(stop, len(self))
        first = int(np.searchsorted(self._bounds, start, side="right")) - 1
        found = []
        for number in range(first, len(self._pieces)):
            low = self._bounds[number]
            if low >= stop:
                break
            found.append(self._pieces[number][max(start - low, 0) : stop - low])
        ids = found[0] if len(found) == 1 else np.concatenate(found) if found else np.zeros(0, np.int32)
        if self._vocabulary_size is not None and len(ids) and not 0 <= ids.min() <= ids.max() < self._vocabulary_size:
            wrong = ids.max() if ids.max() >= self._vocabulary_size else ids.min()
            raise UsageError(
                f"Between positions {start:,} and {stop:,}, {self._name} has the token {wrong}, but the vocabulary has "
                f"tokens 0 to {self._vocabulary_size - 1:,}. Set the VOCABULARY (or TOKEN_DTYPE) that it was made with."
            )
        return ids.astype(np.int32) + self._offset if self._offset else ids.astype(np.int32)

    def begins(self, start: int, count: int) -> np.ndarray:
        """Returns bool (count,): whether each of the ids from `start` on is the first one of a document."""
        if self._ends is None or self._stops_end:
            before = self.read(start - 1, start + count - 1)
            starts = before == self.stop_id if self.stop_id is not None else np.zeros(len(before), bool)
            return np.concatenate([[True], starts]) if start == 0 else starts
        ends = self.document_ends
        low, high = np.searchsorted(ends, [start, start + count])
        starts = np.zeros(count, bool)
        starts[ends[low:high] - start] = True
        starts[:1] |= start == 0
        return starts

    @functools.cached_property
    def document_ends(self) -> np.ndarray:
        """Ends of the documents, exclusive: int64 (documents,); the last is the end of all ids."""
        if self._ends is not None:
            ends = [ends[:].astype(np.int64) + low for ends, low in zip(self._ends, self._bounds, strict=False)]
        else:
            ends = []
            for piece, low in zip(self._pieces, self._bounds, strict=False):
                for start in range(0, len(piece), CHUNK):
                    stops = np.flatnonzero(piece[start : start + CHUNK] == (self.stop_id or 0) - self._offset)
                    ends.append(stops + low + start + 1)
        found = np.concatenate([*ends, np.zeros(0, np.int64)])
        if len(self) and (not len(found) or found[-1] != len(self)):
            found = np.append(found, len(self))
        return found

    @functools.cached_property
    def fingerprint(self) -> str:
        """A string that changes with the number of ids, and with the ids at the beginning, middle or end."""
        content = hashlib.sha256(f"{len(self)}".encode())
        for start in (0, len(self) // 2, max(0, len(self) - SAMPLE)):
            content.update(self.read(start, start + SAMPLE).tobytes())
        return f"{len(self)} tokens {content.hexdigest()[:12]}"


@runtime_checkable
class TokenSource(Protocol):
    """A data set as token ids."""

    def tokens(self, split: str) -> Tokens:
        """Returns the ids of "train", "validation" or "test"; raises a UsageError if they cannot be read."""
        ...

    def texts(self, split: str) -> Iterator[str]:
        """Yields the documents as text; raises a UsageError if they are token ids."""
        ...

    def describe(self) -> str:
        """Returns a description of the data for messages, without reading them."""
        ...
