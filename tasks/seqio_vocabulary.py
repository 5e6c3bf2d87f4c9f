"""The vocabulary of a seqio task, as tasks and sampling want it."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from layers.errors import UsageError
from tasks.seqio_library import feature_of, find_task, libraries


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeqioVocabulary:
    """The vocabulary of a seqio Task's or Mixture's "targets"; it is looked up when first asked for.

    Texts start with seqio's padding, 0, which its feature converters put in front of each.
    """

    task: str  # name of the Task or Mixture
    rows: int  # of the embedding: the vocabulary must not be larger

    @functools.cached_property
    def inner(self) -> Any:
        """seqio's own Vocabulary.

        Raises:
          UsageError: there is no such task, or the vocabulary has more tokens than the embedding rows.
        """
        found = feature_of(find_task(self.task), "targets", "its vocabulary").vocabulary
        if found.vocab_size > self.rows:
            raise UsageError(
                f"VOCAB_SIZE = {self.rows} must be at least {found.vocab_size}, the tokens of seqio task '{self.task}'."
            )
        return found

    @property
    def size(self) -> int:
        return self.rows

    @property
    def stop_id(self) -> int | None:
        return self.inner.eos_id

    @property
    def start_id(self) -> int | None:
        return self.inner.pad_id

    def encode(self, text: str) -> list[int]:
        return [int(token) for token in self.inner.encode(text)]

    def decode(self, ids: Sequence[int]) -> str:
        known = [int(i) for i in ids if 0 < int(i) < self.inner.vocab_size]
        text = self.inner.decode(known)
        return text if isinstance(text, str) else " ".join(map(str, known))

    def token_bytes(self) -> np.ndarray:
        """float32 (rows,): for bytes and SentencePiece, whose "▁" is a space; of other vocabularies all zero."""
        seqio, _ = libraries()
        sizes = np.zeros(self.rows, np.float32)
        if isinstance(self.inner, seqio.ByteVocabulary):
            sizes[3:259] = 1
        elif isinstance(self.inner, seqio.SentencePieceVocabulary):
            pieces = self.inner.tokenizer
            for token in range(pieces.GetPieceSize()):
                sizes[token] = _piece_bytes(pieces, token)
        return sizes


def _piece_bytes(pieces: Any, token: int) -> int:
    if pieces.IsControl(token) or pieces.IsUnknown(token) or pieces.IsUnused(token):
        return 0
    if pieces.IsByte(token):
        return 1
    return len(pieces.IdToPiece(token).replace("\u2581", " ").encode())
