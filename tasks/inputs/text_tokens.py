"""Windows of text as tokens of a vocabulary that lives in files."""

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np

from layers.errors import UsageError
from tasks.inputs.corpus import DOCUMENT_END, stretches
from tasks.inputs.text import TextInput
from tasks.vocabulary import Vocabulary

TOGETHER = 256  # texts encoded at once
STRETCH = 2**16  # bytes of a text file encoded as one text, up to the end of a line


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextTokensInput(TextInput):
    """TextInput's windows over tokens instead of bytes, encoded in memory when they are first read.

    Each file of the standard library is a document with the vocabulary's end behind it; a text file is one document,
    encoded in stretches of whole lines.
    """

    vocabulary: Vocabulary

    @functools.cached_property
    def data(self) -> np.ndarray:
        """The split's token ids.

        Raises:
          UsageError: there are too few for one window.
        """
        wide = np.uint16 if self.vocabulary.size <= 2**16 else np.int32
        stop = [] if self.path is not None or self.vocabulary.stop_id is None else [self.vocabulary.stop_id]
        parts = [np.zeros(0, wide)]
        for texts in _groups(self._documents()):
            for ids in self.vocabulary.encode_batch(texts):
                parts += [ids.astype(wide), np.array(stop, wide)]
        data = np.concatenate(parts)
        need = self.seq_len + 1 if self.shuffle else 2
        if len(data) < need:
            raise UsageError(f"{self._where} has {len(data)} tokens, fewer than the {need} needed.")
        return data

    @functools.cached_property
    def byte_ratio(self) -> float:
        """Bytes of the split's text per byte that its tokens count."""
        data = self.text_bytes()
        raw = len(data) - (int(np.count_nonzero(data == DOCUMENT_END[0])) if self.path is None else 0)
        counted = float(self.vocabulary.token_bytes()[self.data].sum(dtype=np.float64))
        return raw / counted if counted else 1.0

    @property
    def _where(self) -> str:
        return f"The {self.split} split of '{self.path or 'the standard library'}'"

    def describe(self) -> str:
        where = "the source of Python's standard library" if self.path is None else f"the text file '{self.path}'"
        return f"{where}, {len(self.data):,} tokens of {self.vocabulary.describe()} in its {self.split} split"

    def _documents(self) -> Iterator[str]:
        if self.path is None:
            yield from self.texts()
            return
        for stretch in stretches(self.text_bytes(), b"\n", STRETCH):
            yield stretch.decode("utf-8", errors="replace")


def _groups(texts: Iterator[str]) -> Iterator[list[str]]:
    group: list[str] = []
    for text in texts:
        group.append(text)
        if len(group) == TOGETHER:
            yield group
            group = []
    if group:
        yield group
