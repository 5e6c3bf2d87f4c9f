"""Vocabularies: text to token ids and back, and how many bytes a token stands for."""

import dataclasses
from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np

from layers.errors import UsageError


class Vocabulary(Protocol):
    """What a task needs to know of its tokens."""

    @property
    def size(self) -> int: ...

    @property
    def stop_id(self) -> int | None: ...

    @property
    def start_id(self) -> int | None:
        """What every text starts with, where it was learned so."""
        ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def token_bytes(self) -> np.ndarray:
        """float32 (size,): bytes of text each token stands for; all zero where tokens are not text."""
        ...


@dataclasses.dataclass(frozen=True)
class ByteVocabulary:
    """The 256 byte values of UTF-8 text.

    Without special tokens byte 0, which text does not contain, ends a document. With three of them, as T5 and seqio
    have it: 0 pads, 1 ends a document, 2 is unknown, and byte b is token b + 3.
    """

    special_tokens: Literal[0, 3] = 0

    @property
    def size(self) -> int:
        return 256 + self.special_tokens

    @property
    def stop_id(self) -> int | None:
        return 1 if self.special_tokens else 0

    @property
    def start_id(self) -> int | None:
        return 1 if self.special_tokens else None

    def encode(self, text: str) -> list[int]:
        return [byte + self.special_tokens for byte in text.encode("utf-8")]

    def decode(self, ids: Sequence[int]) -> str:
        values = (int(i) - self.special_tokens for i in ids)
        return bytes(value for value in values if 0 <= value < 256).decode("utf-8", errors="replace")

    def token_bytes(self) -> np.ndarray:
        return (np.arange(self.size) >= self.special_tokens).astype(np.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class IdVocabulary:
    """Token ids that stand for nothing, as synthetic data has them; written as numbers with spaces between."""

    size: int  # ids 0 ... size - 1
    stop_id: int | None = None
    start_id: int | None = None

    def encode(self, text: str) -> list[int]:
        words = text.split()
        bad = [w for w in words if not w.isdigit() or int(w) >= self.size]
        if bad:
            raise UsageError(f"'{bad[0]}' is no token id: this vocabulary has the ids 0 to {self.size - 1}.")
        return [int(w) for w in words]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(str(int(i)) for i in ids)

    def token_bytes(self) -> np.ndarray:
        return np.zeros(self.size, np.float32)
