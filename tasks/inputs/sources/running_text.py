"""Text without documents of its own: a file in megabytes, or the standard library file by file."""

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np

from tasks.inputs.corpus import DOCUMENT_END, ByteText, StandardLibrary, check_split
from tasks.inputs.sources.documents import Document, DocumentSource, Part, Skipped
from tasks.inputs.sources.files import version

PART_BYTES = 1 << 26
DOCUMENT_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunningText(DocumentSource):
    """The text that TextFile and StandardLibrary read as bytes, for vocabularies of larger tokens.

    A file's splits are the same bytes as there; it is tokenised in documents of about a megabyte that end with a line.
    """

    path: str | None = None  # a text file; None is the source of Python's standard library
    fractions: tuple[float, ...] = (0.9, 0.05, 0.05)  # how a file is cut, in this order

    @property
    def _bytes(self) -> ByteText:
        return ByteText(path=self.path, fractions=self.fractions)

    @property
    def has_splits(self) -> bool:
        return True

    def parts(self, split: str | None) -> list[Part]:
        data = self._bytes.text.read(check_split(split or "train"))
        if self.path is None:
            return [Part(f"{self.describe()} ({split})", StandardLibrary().version(), lambda: _files(data))]
        written = f"{version(self.path)} {self.fractions}"
        bounds = _line_ends(data, PART_BYTES)
        return [
            Part(
                f"'{self.path}' ({split}, from byte {low:,})", written, lambda low=low, high=high: _cut(data[low:high])
            )
            for low, high in itertools.pairwise(bounds)
        ]

    def describe(self) -> str:
        return self._bytes.describe()


def _files(data: np.ndarray) -> Iterator[Document]:
    ends = np.flatnonzero(data == DOCUMENT_END[0])
    for start, end in zip([0, *(ends[:-1] + 1)], ends, strict=True):
        yield _text(data[start:end])


def _cut(data: np.ndarray) -> Iterator[Document]:
    bounds = _line_ends(data, DOCUMENT_BYTES)
    for low, high in itertools.pairwise(bounds):
        yield _text(data[low:high])


def _line_ends(data: np.ndarray, size: int) -> list[int]:
    """Bounds of stretches of at least `size` bytes that end with a line, where it ends within another `size`."""
    bounds = [0]
    while bounds[-1] < len(data):
        least = bounds[-1] + size
        newlines = np.flatnonzero(data[least : least + size] == ord("\n"))
        bounds.append(min(len(data), least + int(newlines[0]) + 1 if len(newlines) else least))
    return bounds


def _text(data: np.ndarray) -> Document:
    try:
        return data.tobytes().decode("utf-8")
    except UnicodeDecodeError:
        return Skipped("invalid UTF-8")
