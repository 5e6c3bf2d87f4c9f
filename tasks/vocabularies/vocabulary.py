"""Vocabularies: conversion between text and token ids, and the number of bytes that each token represents."""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from layers.errors import UsageError


@runtime_checkable
class Vocabulary(Protocol):
    """The interface of a vocabulary."""

    @property
    def size(self) -> int: ...

    @property
    def stop_id(self) -> int | None:
        """Id of the token that ends a document; None if there is none."""
        ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids of all tokens that end a generated text, `stop_id` first; empty if there is none."""
        ...

    @property
    def start_id(self) -> int | None:
        """Id of the token that starts every text, if the model was trained with one."""
        ...

    @property
    def named_start_id(self) -> int | None:
        """Id of the start token that the files of a vocabulary name, although texts may lack it; None if unknown."""
        ...

    @property
    def needed_rows(self) -> int:
        """Embedding rows that hold all tokens of texts and all start and end tokens; at most `size`."""
        ...

    @property
    def is_text(self) -> bool:
        """Returns whether tokens represent text; otherwise they are plain numbers."""
        ...

    @property
    def fingerprint(self) -> str:
        """A hash of everything that decides which ids a text gets; it depends on content, not on file names."""
        ...

    def describe(self) -> str:
        """Returns a short description for messages."""
        ...

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text without added special tokens; special-token strings in the text are plain text."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encodes many texts at once; each result is int32 (number of ids,)."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of any ids; incomplete characters become U+FFFD, ids without text are omitted."""
        ...

    def token_bytes(self) -> np.ndarray:
        """Returns float32 (size,): bytes of text that each token represents; all zero if tokens are not text."""
        ...


class DefaultProperties:
    """The properties of a vocabulary that follow from others, unless its files state them."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        vocabulary: Any = self
        return () if vocabulary.stop_id is None else (vocabulary.stop_id,)

    @property
    def named_start_id(self) -> int | None:
        return None

    @property
    def needed_rows(self) -> int:
        vocabulary: Any = self
        return vocabulary.size


def fingerprint_of(*parts: bytes | str) -> str:
    """Returns the first 32 hexadecimal digits of the SHA-256 of the parts in order, with their lengths."""
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()[:32]


@dataclasses.dataclass(frozen=True)
class ByteVocabulary(DefaultProperties):
    """The 256 byte values of UTF-8 text.

    Without special tokens, byte 0 (which text does not contain) ends a document. With three, as in T5 and seqio, 0 is
    padding, 1 ends a document, 2 is unknown, and byte b is token b + 3.
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
        return "bytes" + (f" after {self.special_tokens} special tokens" if self.special_tokens else "")

    def encode(self, text: str) -> list[int]:
        return [byte + self.special_tokens for byte in text.encode("utf-8")]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        arrays = (np.frombuffer(text.encode("utf-8"), np.uint8) for text in texts)
        return [array.astype(np.int32) + self.special_tokens for array in arrays]

    def decode(self, ids: Sequence[int]) -> str:
        values = (int(i) - self.special_tokens for i in ids)
        return bytes(value for value in values if 0 <= value < 256).decode("utf-8", errors="replace")

    def token_bytes(self) -> np.ndarray:
        return (np.arange(self.size) >= max(self.special_tokens, 1)).astype(np.float32)  # the end token has no text


@dataclasses.dataclass(frozen=True, kw_only=True)
class IdVocabulary(DefaultProperties):
    """Token ids without text, as in synthetic data; their text form is numbers separated by spaces."""

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
            raise UsageError(f"A token id must be a number from 0 to {self.size - 1} (got '{bad[0]}').")
        return [int(w) for w in words]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.array(self.encode(text), np.int32) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(str(int(i)) for i in ids)

    def token_bytes(self) -> np.ndarray:
        return np.zeros(self.size, np.float32)


# The type checker verifies that they implement the protocol.
_MEET: tuple[Callable[..., Vocabulary], ...] = (ByteVocabulary, IdVocabulary)
