"""Vocabularies: text to token ids and back, and how many bytes a token stands for."""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from layers.errors import UsageError


@runtime_checkable
class Vocabulary(Protocol):
    """What a task needs to know of its tokens."""

    @property
    def size(self) -> int: ...

    @property
    def stop_id(self) -> int | None:
        """What ends a document."""
        ...

    @property
    def start_id(self) -> int | None:
        """What every text starts with, where it was learned so."""
        ...

    @property
    def is_text(self) -> bool:
        """Whether tokens stand for text; otherwise for numbers alone."""
        ...

    @property
    def fingerprint(self) -> str:
        """A hash of everything that decides which text gets which ids: content, and not the name it is found under."""
        ...

    def describe(self) -> str:
        """What it is, for a person."""
        ...

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special tokens around it; what looks like one in the text is text."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """`encode` of many texts at once, each int32 (its length,)."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of any ids: half a character is U+FFFD, ids that nothing stands for are left out."""
        ...

    def token_bytes(self) -> np.ndarray:
        """float32 (size,): bytes of text each token stands for; all zero where tokens are not text."""
        ...


def fingerprint_of(*parts: bytes | str) -> str:
    """SHA-256 of the parts in order, in hexadecimal, first 32 digits; where one part ends counts."""
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()[:32]


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

    @property
    def is_text(self) -> bool:
        return True

    @property
    def fingerprint(self) -> str:
        return fingerprint_of("bytes", str(self.special_tokens))

    def describe(self) -> str:
        return "bytes" + (f" behind {self.special_tokens} special tokens" if self.special_tokens else "")

    def encode(self, text: str) -> list[int]:
        return [byte + self.special_tokens for byte in text.encode("utf-8")]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        arrays = (np.frombuffer(text.encode("utf-8"), np.uint8) for text in texts)
        return [array.astype(np.int32) + self.special_tokens for array in arrays]

    def decode(self, ids: Sequence[int]) -> str:
        values = (int(i) - self.special_tokens for i in ids)
        return bytes(value for value in values if 0 <= value < 256).decode("utf-8", errors="replace")

    def token_bytes(self) -> np.ndarray:
        return (np.arange(self.size) >= max(self.special_tokens, 1)).astype(np.float32)  # an end is no text


@dataclasses.dataclass(frozen=True, kw_only=True)
class IdVocabulary:
    """Token ids that stand for nothing, as synthetic data has them; written as numbers with spaces between."""

    size: int  # ids 0 ... size - 1
    stop_id: int | None = None
    start_id: int | None = None

    @property
    def is_text(self) -> bool:
        return False

    @property
    def fingerprint(self) -> str:
        return fingerprint_of("ids", str(self.size), str(self.stop_id), str(self.start_id))

    def describe(self) -> str:
        return f"the token ids 0 to {self.size - 1}"

    def encode(self, text: str) -> list[int]:
        words = text.split()
        bad = [w for w in words if not w.isdigit() or int(w) >= self.size]
        if bad:
            raise UsageError(f"'{bad[0]}' is no token id: this vocabulary has the ids 0 to {self.size - 1}.")
        return [int(w) for w in words]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.array(self.encode(text), np.int32) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(str(int(i)) for i in ids)

    def token_bytes(self) -> np.ndarray:
        return np.zeros(self.size, np.float32)


# The type checker holds them to the protocol.
_MEET: tuple[Callable[..., Vocabulary], ...] = (ByteVocabulary, IdVocabulary)
