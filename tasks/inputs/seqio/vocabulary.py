"""The vocabulary of a seqio task, as tasks and sampling want it."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from layers.errors import UsageError
from tasks.inputs.seqio.library import libraries
from tasks.inputs.seqio.registered import feature_of, find_task
from tasks.vocabularies.subwords import piece_bytes
from tasks.vocabularies.vocabulary import IdVocabulary, Vocabulary, fingerprint_of


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
        end = self.inner.eos_id
        return None if end is None or end < 0 else end  # SentencePiece says -1

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
            parts = ["sentencepiece", self.inner.sp_model]  # as it was loaded, with the Task's extra ids
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
        """float32 (rows,): for bytes and SentencePiece, whose "▁" is a space; of other vocabularies all zero."""
        seqio, _ = libraries()
        sizes = np.zeros(self.rows, np.float32)
        if isinstance(self.inner, seqio.ByteVocabulary):
            sizes[3:259] = 1
        elif isinstance(self.inner, seqio.SentencePieceVocabulary):
            counted = piece_bytes(self.inner.tokenizer)
            sizes[: len(counted)] = counted
        return sizes


def _pieces(inner: Any) -> list[bytes]:
    """What each token stands for; nothing where tokens are numbers."""
    seqio, _ = libraries()
    if isinstance(inner, seqio.PassThroughVocabulary):
        return []
    # Half a surrogate pair may be a token.
    return [str(inner.decode([token])).encode("utf-8", "surrogatepass") for token in range(inner.vocab_size)]


_MEETS: Callable[..., Vocabulary] = SeqioVocabulary  # the type checker holds it to the protocol
