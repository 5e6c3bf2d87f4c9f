"""enwik8: the first 100 million bytes of a Wikipedia dump."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from layers.errors import UsageError
from tasks.inputs.byte_text import TextFile, texts_between
from tasks.inputs.tokens import Tokens
from tasks.vocabularies.vocabulary import ByteVocabulary

VOCABULARY = ByteVocabulary(special_tokens=3)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Enwik8:
    """enwik8 from its raw file, cut in order: 90% train, 5% validation, 5% test."""

    path: str | None  # the file enwik8 from enwik8.zip

    def tokens(self, split: str) -> Tokens:
        return Tokens(
            [self._read(split)],
            stop_id=VOCABULARY.stop_id,
            start_id=VOCABULARY.start_id,
            offset=VOCABULARY.special_tokens,
        )

    def texts(self, split: str) -> Iterator[str]:
        return texts_between(b"\n", self._read(split))

    def _read(self, split: str) -> np.ndarray:
        """Returns the bytes of a split: uint8 (N,)."""
        if self.path is None:
            raise UsageError("enwik8 needs its raw file (http://mattmahoney.net/dc). Set DATA_PATH=/path/to/enwik8.")
        return TextFile(self.path, is_text=False).read(split)

    def describe(self) -> str:
        return f"enwik8 from '{self.path}'"
