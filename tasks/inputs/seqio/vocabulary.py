"""Vocabularies of seqio tasks, in the project's Vocabulary protocol."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from layers.errors import UsageError
from tasks.inputs.seqio.library import libraries
from tasks.inputs.seqio.registered import feature_of, find_task
from tasks.vocabularies.subwords import piece_bytes
from tasks.vocabularies.vocabulary import DefaultProperties, IdVocabulary, Vocabulary, fingerprint_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeqioVocabulary(DefaultProperties):
    """The vocabulary of a seqio Task's or Mixture's "targets", looked up on first use.

    Texts start with seqio's padding token 0, because its feature converters prepend it.
    """

    task: str  # name of the Task or Mixture
    rows: int  # embedding rows, at least the size of the vocabulary

    @functools.cached_property
    def inner(self) -> Any:
        """seqio's own Vocabulary.

        Raises:
          UsageError: unknown task, or a vocabulary with more tokens than `rows`.
        """
        found = feature_of(find_task(self.task), "targets", "its vocabulary").vocabulary
        if found.vocab_size > self.rows:
            raise UsageError(
                f"VOCAB_SIZE = {self.rows} is smaller than the vocabulary of seqio task '{self.task}' "
                f"({found.vocab_size} tokens). Set VOCAB_SIZE={found.vocab_size}."
            )
        return found

    @property
    def size(self) -> int:
        return self.rows

    @property
    def stop_id(self) -> int | None:
        end = self.inner.eos_id
        return None if end is None or end < 0 else end  # SentencePiece has -1 for none

    @property
    def start_id(self) -> int | None:
        return self.inner.pad_id

    @property
    def is_text(self) -> bool:
        seqio, _ = libraries()
        return not isinstance(self.inner, seqio.PassThroughVocabulary)

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @functools.cached_property
    def _fingerprint(self) -> str:
        seqio, _ = libraries()
        if isinstance(self.inner, seqio.ByteVocabulary):
            parts = ["bytes"]
        elif isinstance(self.inner, seqio.SentencePieceVocabulary):
            parts = ["sentencepiece", self.inner.sp_model]  # the loaded model, with the Task's extra ids
        else:
            parts = [type(self.inner).__qualname__, *_pieces(self.inner)]
        ids = (self.inner.vocab_size, self.inner.extra_ids, self.start_id, self.stop_id, self.inner.unk_id)
        return fingerprint_of("seqio", *parts, *map(str, ids))

    def describe(self) -> str:
        return f"the vocabulary of seqio task '{self.task}' ({type(self.inner).__name__})"

    def encode(self, text: str) -> list[int]:
        if not self.is_text:
            return IdVocabulary(size=self.inner.vocab_size).encode(text)
        return [int(token) for token in self.inner.encode(text)]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.array(self.encode(text), np.int32) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        known = [int(i) for i in ids if 0 < int(i) < self.inner.vocab_size]
        text = self.inner.decode(known)
        return text if isinstance(text, str) else " ".join(map(str, known))

    def token_bytes(self) -> np.ndarray:
        """Returns float32 (rows,): bytes per token for byte and SentencePiece ("▁" is a space) vocabularies, else 0."""
        seqio, _ = libraries()
        sizes = np.zeros(self.rows, np.float32)
        if isinstance(self.inner, seqio.ByteVocabulary):
            sizes[3:259] = 1
        elif isinstance(self.inner, seqio.SentencePieceVocabulary):
            counted = piece_bytes(self.inner.tokenizer)
            sizes[: len(counted)] = counted
        return sizes


def _pieces(inner: Any) -> list[bytes]:
    """Returns the text of each token, in UTF-8; empty for a vocabulary of numbers."""
    seqio, _ = libraries()
    if isinstance(inner, seqio.PassThroughVocabulary):
        return []
    # A token may be one half of a surrogate pair.
    return [str(inner.decode([token])).encode("utf-8", "surrogatepass") for token in range(inner.vocab_size)]


_MEETS: Callable[..., Vocabulary] = SeqioVocabulary  # makes the type checker compare the class with the protocol
