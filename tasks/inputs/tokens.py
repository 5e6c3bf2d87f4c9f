"""Token ids of a split as one long array, memory-mapped, with the ends of its documents."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from layers.errors import UsageError
from tasks.inputs.indexed import ByteCounts

CHUNK = 1 << 24  # ids that are looked through at once


class Tokens:
    """Pieces of ids, one behind the other, seen as one array; nothing is read before it is asked for."""

    def __init__(
        self,
        pieces: Sequence[Any],
        ends: Sequence[Any] | None = None,
        *,
        stop_id: int | None = None,
        start_id: int | None = None,
        offset: int = 0,
        byte_counts: ByteCounts | None = None,
        vocabulary_size: int | None = None,
        name: str = "tokens",
    ):
        """`pieces` are integer arrays (n,), of numpy or what gives such for a slice, and `ends` where documents end in each, exclusive, ascending.

        Without `ends` a document ends behind each `stop_id`. `offset` is added to every stored id. `byte_counts` is
        that of IndexedInput. With `vocabulary_size`, ids are held against it when they are read.
        """
        self.stop_id, self.start_id, self.byte_counts = stop_id, start_id, byte_counts
        self._pieces, self._ends, self._offset = list(pieces), ends, offset
        self._vocabulary_size, self._name = vocabulary_size, name
        self._bounds = np.cumsum([0, *(len(piece) for piece in self._pieces)])

    def __len__(self) -> int:
        return int(self._bounds[-1])

    def read(self, start: int, stop: int) -> np.ndarray:
        """Ids start ... stop - 1, int32; fewer where the array ends before.

        Raises:
          UsageError: one is not in the vocabulary.
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
                f"Between {start:,} and {stop:,}, {self._name} has the token {wrong}, but the vocabulary the tokens "
                f"0 to {self._vocabulary_size - 1:,}: name the VOCABULARY (or dtype) that it was made with."
            )
        return ids.astype(np.int32) + self._offset if self._offset else ids.astype(np.int32)

    @functools.cached_property
    def document_ends(self) -> np.ndarray:
        """int64 (documents,): where each document ends, exclusive; the last at the end of all ids."""
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


class TokenSource(Protocol):
    """A data set as token ids."""

    def tokens(self, split: str) -> Tokens:
        """The ids of "train", "validation" or "test"; a UsageError where they cannot be read."""
        ...

    def texts(self, split: str) -> Iterator[str]:
        """The documents as text; a UsageError where they are not."""
        ...

    def describe(self) -> str:
        """What is read, for a person."""
        ...
