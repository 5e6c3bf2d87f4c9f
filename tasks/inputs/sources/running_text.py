"""Running text: a file in chunks of lines, or the standard library file by file."""

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np

from tasks.inputs.byte_text import ByteText, StandardLibrary, check_split, stretches
from tasks.inputs.files.files import version
from tasks.inputs.sources.documents import Document, DocumentSource, Part

PART_BYTES = 1 << 26
STRETCH_BYTES = 1 << 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunningText(DocumentSource):
    """The text that ByteText reads, for vocabularies other than bytes; splits contain the same bytes.

    A text file is read in chunks of complete lines, which are not documents and have no end token. Bytes that are not
    UTF-8 are read as U+FFFD.
    """

    path: str | None = None  # a text file; None is the source of Python's standard library
    fractions: tuple[float, ...] = (0.9, 0.05, 0.05)  # of a file, for train, validation and test, in this order

    @property
    def has_splits(self) -> bool:
        return True

    def parts(self, split: str | None) -> list[Part]:
        split = check_split(split or "train")
        if self.path is None:
            files = functools.partial(self._bytes.texts, split)
            return [Part(f"{self.describe()} ({split}, byte 0)", StandardLibrary().version(), files)]
        data, written = self._bytes.text.read(split), f"{version(self.path)} {self.fractions}"
        return [
            Part(f"{self.describe()} ({split}, byte {start})", written, functools.partial(self._stretches, data, start))
            for start in range(0, len(data), PART_BYTES)
        ]

    def _stretches(self, data: np.ndarray, start: int) -> Iterator[Document]:
        low, high = (_line_end(data, place) for place in (start, start + PART_BYTES))
        for stretch in stretches(data[low:high], b"\n", STRETCH_BYTES):
            yield stretch.decode("utf-8", errors="replace")

    @property
    def is_running_text(self) -> bool:
        return self.path is not None

    def describe(self) -> str:
        return self._bytes.describe()

    @property
    def _bytes(self) -> ByteText:
        return ByteText(path=self.path, fractions=self.fractions)


def _line_end(data: np.ndarray, start: int) -> int:
    """Returns the position after the first line that ends at `start` or later; 0 for 0."""
    if start == 0:
        return 0
    for low in range(start - 1, len(data), STRETCH_BYTES):
        found = np.flatnonzero(data[low : low + STRETCH_BYTES] == ord("\n"))
        if len(found):
            return low + int(found[0]) + 1
    return len(data)
