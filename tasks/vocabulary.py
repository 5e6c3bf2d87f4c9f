"""Vocabularies: text to token ids and back, and how many bytes a token stands for."""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from layers.errors import UsageError


class Vocabulary(Protocol):
    """What a task needs to know of its tokens."""

    @property
    def size(self) -> int: ...

    @property
    def stop_id(self) -> int | None: ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def token_bytes(self) -> np.ndarray:
        """float32 (size,): bytes of text each token stands for; all zero where tokens are not text."""
        ...


@dataclasses.dataclass(frozen=True)
class ByteVocabulary:
    """The 256 byte values of UTF-8 text. Byte 0, which text does not contain, ends a document."""

    size: int = dataclasses.field(default=256, init=False)
    stop_id: int | None = dataclasses.field(default=0, init=False)

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8"))

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(int(i) for i in ids).decode("utf-8", errors="replace")

    def token_bytes(self) -> np.ndarray:
        return np.ones(self.size, np.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class IdVocabulary:
    """Token ids that stand for nothing, as synthetic data has them; written as numbers with spaces between."""

    size: int  # ids 0 ... size - 1
    stop_id: int | None = None

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
