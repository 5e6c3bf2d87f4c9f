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
    """The first 100 million bytes of a Wikipedia dump, from its raw file: 90% train, 5% validate, 5% test, in order."""

    path: str | None  # the file named enwik8, as unpacked from enwik8.zip

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
        """The bytes of a split, uint8 (N,)."""
        if self.path is None:
            raise UsageError(
                "enwik8 needs its raw file: --set=DATA_PATH=/where/it/is/enwik8 (http://mattmahoney.net/dc)."
            )
        return TextFile(self.path, is_text=False).read(split)

    def describe(self) -> str:
        return f"enwik8 from '{self.path}'"
