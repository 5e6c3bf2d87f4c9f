"""Rows of token ids: running text cut into windows, or packed documents."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Literal

import numpy as np

from layers.errors import UsageError
from tasks.batch import Batch
from tasks.inputs.indexed import ByteCounts, RowInput, generator
from tasks.inputs.packing import best_fit
from tasks.inputs.shuffling import LISTED, shuffled
from tasks.inputs.tokens import Tokens, TokenSource


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokensInput(RowInput):
    """Rows of `seq_len` tokens, each predicted from those before it.

    `rows` selects how the concatenated documents of a split are divided into rows:

    * "cut": windows of the running text, at a new offset in every epoch. The first input is the token before the row.
    * "restart": rows at multiples of `seq_len`; the first token of each is predicted from the stop token.
    * "pack": as many complete documents as fit (tasks.inputs.packing); longer ones continue in other rows.
    * "truncate": one document per row; tokens that do not fit are dropped.

    With `shuffle` the input is infinite: an epoch visits every full row once, in an order determined by `seed` and the
    epoch's number. Without, it is one pass in order, and the last rows are padded with weight 0.
    """

    source: TokenSource
    split: str = "train"  # train, validation or test
    rows: Literal["cut", "restart", "pack", "truncate"] = "cut"
    document_masks: bool = False  # positions restart in each document, and attention is limited to it
    max_segments: int | None = None  # rows = "pack": most documents in a row; None for no limit
    shuffle: bool = True
    seed: int = 0
    max_rows: int | None = None  # without shuffling: number of rows, evenly spaced over the split; None is all
    first_row: int = 0  # with shuffling: number of the row that row 0 is; an earlier phase has read those before

    def __post_init__(self):
        super().__post_init__()
        if self.first_row < 0 or (self.first_row and not self.shuffle):
            raise ValueError(f"first_row must be at least 0, and 0 without shuffling (got {self.first_row})")

    @functools.cached_property
    def tokens(self) -> Tokens:
        """The split's ids.

        Raises:
          UsageError: there are too few tokens for one row, or `rows` needs document ends that are unknown.
        """
        tokens = self.source.tokens(self.split)
        need = {"cut": self.seq_len + 1 if self.shuffle else 2, "restart": self.seq_len if self.shuffle else 1}
        if len(tokens) < need.get(self.rows, 1):
            raise UsageError(
                f"The {self.split} split of {self.source.describe()} has {len(tokens)} tokens, fewer than the "
                f"{need.get(self.rows, 1)} needed."
            )
        by_documents = self.rows in ("pack", "truncate") or self.document_masks
        if (by_documents and not tokens.has_documents) or (self.rows != "cut" and tokens.first_id is None):
            knob = "document_masks" if self.document_masks else f"rows = {self.rows}"
            raise UsageError(
                f"{knob} needs to know where documents end, but {self.source.describe()} has no stop token."
            )
        return tokens

    def describe(self) -> str:
        return f"{self.source.describe()}, {len(self.tokens):,} tokens in its {self.split} split"

    def require_data(self) -> None:
        _ = self.tokens

    def texts(self) -> Iterator[str]:
        return self.source.texts(self.split)

    @property
    def fields(self) -> frozenset[str]:
        if self.document_masks:
            return frozenset({"segment_ids", "positions"})
        return frozenset({"is_token"} if self._has_padding else ())

    @property
    def _has_padding(self) -> bool:
        return not self.shuffle or self.rows in ("pack", "truncate")

    @property
    def fingerprint(self) -> str | None:
        return self.tokens.fingerprint

    @property
    def byte_counts(self) -> ByteCounts | None:
        return self.tokens.byte_counts

    @functools.cached_property
    def num_rows(self) -> int | None:
        """Rows in one pass; None if the input is infinite."""
        if self.shuffle:
            return None
        return self._whole_rows if self.max_rows is None else min(self._whole_rows, self.max_rows)

    @functools.cached_property
    def _whole_rows(self) -> int:
        """Rows of the split; with shuffling, full rows only."""
        count, length = len(self.tokens), self.seq_len
        if self.rows == "cut":
            return max(1, (count - 1) // length - 1) if self.shuffle else -(-(count - 1) // length)
        if self.rows == "restart":
            return count // length if self.shuffle else -(-count // length)
        return len(self._packed) - 1

    def row(self, number: int) -> Batch:
        offset, length = 0, self.seq_len
        if self.shuffle:
            epoch, place = divmod(self.first_row + number, self._whole_rows)
            if self.rows == "cut":
                offset, order = _windows(self.seed, epoch, min(length, len(self.tokens) - length), self._whole_rows)
                chosen = shuffled(place, self._whole_rows, self.seed, epoch) if order is None else int(order[place])
            else:
                chosen = shuffled(place, self._whole_rows, self.seed, epoch)
        else:
            chosen = number * self._whole_rows // (self.num_rows or 1)
        if self.rows in ("pack", "truncate"):
            return self._packed_row(chosen)
        start = offset + chosen * length
        if self.rows == "cut":
            ids = self.tokens.read(start, start + length + 1)
            return self._row(start + 1, ids[:-1], ids[1:])
        ids = self.tokens.read(start, start + length)
        return self._row(start, np.concatenate([self._first, ids[:-1]]), ids)

    def _row(self, start: int, inputs: np.ndarray, targets: np.ndarray) -> Batch:
        """Returns a row of running text, whose targets start at position `start` of the split."""
        read = len(targets)
        pad = lambda ids: np.pad(ids, (0, self.seq_len - len(ids))).astype(np.int32)
        if not self.document_masks:
            return self._unmasked(pad(inputs), pad(targets), read)
        starts = self.tokens.begins(start, read)
        if self.tokens.first_id is not None:
            inputs = np.where(starts, self._first, inputs)
        starts[:1] = True
        return self._with_segments(pad(inputs), pad(targets), starts)

    def _unmasked(self, inputs: np.ndarray, targets: np.ndarray, read: int) -> Batch:
        """Returns the row as one segment of `read` tokens."""
        is_token = np.arange(self.seq_len) < read
        return Batch(inputs, targets, is_token.astype(np.float32), is_token=is_token if self._has_padding else None)

    def _with_segments(self, inputs: np.ndarray, targets: np.ndarray, starts: np.ndarray) -> Batch:
        """Returns the row with segments and positions; `starts` bool (read,) marks the first token of each segment."""
        read, places = len(starts), np.arange(len(starts))
        segments, positions = np.zeros((2, self.seq_len), np.int32)
        segments[:read] = np.cumsum(starts)
        positions[:read] = places - np.maximum.accumulate(np.where(starts, places, 0))
        return Batch(inputs, targets, (segments > 0).astype(np.float32), segments, positions)

    @functools.cached_property
    def _packed(self) -> np.ndarray:
        """Index of the first piece of each row: int64 (rows + 1,)."""
        rows = self._pieces[0]
        return np.searchsorted(rows, np.arange(rows[-1] + 2))

    @functools.cached_property
    def _pieces(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Three int64 arrays (pieces,), ordered by row: row, document, first token in the document."""
        lengths = np.diff(self.tokens.document_ends, prepend=0)
        if self.rows == "pack":
            return best_fit(lengths, self.seq_len, self.max_segments)
        kept = np.flatnonzero(lengths)
        return np.arange(len(kept)), kept, np.zeros(len(kept), np.int64)

    def _packed_row(self, number: int) -> Batch:
        inputs, targets = np.zeros((2, self.seq_len), np.int32)
        starts = np.zeros(self.seq_len, bool)
        at, ends = 0, self.tokens.document_ends
        for piece in range(self._packed[number], self._packed[number + 1]):
            document, first = int(self._pieces[1][piece]), int(self._pieces[2][piece])
            start = (int(ends[document - 1]) if document else 0) + first
            ids = self.tokens.read(start, min(int(ends[document]), start + self.seq_len))
            before = self.tokens.read(start - 1, start) if first else self._first
            here = slice(at, at + len(ids))
            targets[here], inputs[here] = ids, np.concatenate([before, ids[:-1]])
            starts[at] = True
            at += len(ids)
        if not self.document_masks:
            return self._unmasked(inputs, targets, at)
        return self._with_segments(inputs, targets, starts[:at])

    @property
    def _first(self) -> np.ndarray:
        """The input from which the first token of a document is predicted: int32 (1,)."""
        tokens = self.tokens
        return np.array([tokens.first_id or 0], np.int32)


@functools.lru_cache(maxsize=32)
def _windows(seed: int, epoch: int, offsets: int, windows: int) -> tuple[int, np.ndarray | None]:
    """Returns the offset of an epoch's first window, and the order of windows; None if they are too many for a list."""
    rng = generator(seed, epoch)
    return int(rng.integers(offsets)), rng.permutation(windows) if windows <= LISTED else None
