"""Text as one array of bytes per split: a file of the user, or the source of Python's standard library."""

import dataclasses
import functools
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from layers.errors import UsageError, did_you_mean
from tasks.inputs.files.files import on_this_machine
from tasks.inputs.files.plain_text import plain_text
from tasks.inputs.indexed import ByteCounts
from tasks.inputs.tokens import Tokens
from tasks.storage.files import cache_folder, write_whole

SPLITS = ("train", "validation", "test")
DOCUMENT_END = b"\0"


@dataclasses.dataclass(frozen=True)
class TextFile:
    """A file, cut in order into train, validation and test splits."""

    path: str
    fractions: tuple[float, ...] = (0.9, 0.05, 0.05)  # of the bytes, for train, validation and test; the sum is 1
    is_text: bool = True  # False: raw bytes, neither decompressed nor checked

    def read(self, split: str) -> np.ndarray:
        """Returns the bytes of a split: uint8 (N,), memory-mapped.

        Raises:
          UsageError: unknown split, unreadable or empty file, or invalid fractions.
        """
        check_split(split)
        check_fractions(self.fractions)
        data = _map_bytes(self.path, check=self.is_text)
        bounds = [round(len(data) * sum(self.fractions[:i])) for i in range(4)]
        start = SPLITS.index(split)
        return data[bounds[start] : bounds[start + 1]]


@dataclasses.dataclass(frozen=True)
class StandardLibrary:
    """Every .py file of the running Python's standard library, each followed by a zero byte.

    Each file belongs to one split, selected by the first byte of the SHA-256 of its relative path: 0-12 is test, 13-25
    is validation (5% each), the rest is train. Files are sorted by that hash, so that every chunk is a mixture.
    """

    def read(self, split: str) -> np.ndarray:
        """Returns the bytes of a split: uint8 (N,), memory-mapped from a cache that is built on first use."""
        check_split(split)
        return _map_bytes(_standard_library_files()[split])

    def version(self) -> str:
        """Returns a string that changes when the library's source does."""
        return Path(_standard_library_files()["train"]).name


@dataclasses.dataclass(frozen=True, kw_only=True)
class ByteText:
    """A TokenSource of the bytes of a text, memory-mapped; a zero byte ends a document."""

    path: str | None = None  # a text file; None is the source of Python's standard library
    fractions: tuple[float, ...] = (0.9, 0.05, 0.05)  # of a file, for train, validation and test, in this order

    def tokens(self, split: str) -> Tokens:
        data = self.text.read(split)
        return Tokens([data], stop_id=DOCUMENT_END[0], byte_counts=ByteCounts(len(data), len(data)))

    def texts(self, split: str) -> Iterator[str]:
        """Yields the files of the standard library, or the lines of the file."""
        return texts_between(DOCUMENT_END if self.path is None else b"\n", self.text.read(split))

    @property
    def text(self) -> TextFile | StandardLibrary:
        """The source of the bytes."""
        return StandardLibrary() if self.path is None else TextFile(self.path, tuple(self.fractions))

    def describe(self) -> str:
        return "the source of Python's standard library" if self.path is None else f"the text file '{self.path}'"


@functools.cache
def _standard_library_files() -> dict[str, str]:
    root = sysconfig.get_path("stdlib")
    sources = sorted(
        (hashlib.sha256(relative.encode()).digest(), path, size) for relative, path, size in _sources(root)
    )
    listing = "".join(f"{digest.hex()} {size}\n" for digest, _, size in sources)
    name = (
        f"stdlib-{sys.version_info.major}.{sys.version_info.minor}-{hashlib.sha256(listing.encode()).hexdigest()[:12]}"
    )
    folder = cache_folder()
    files = {split: str(folder / f"{name}.{split}.bin") for split in SPLITS}
    if not all(Path(path).exists() for path in files.values()):
        parts: dict[str, list[bytes]] = {split: [] for split in SPLITS}
        for digest, path, _ in sources:
            text = Path(path).read_bytes()
            if text and DOCUMENT_END not in text:
                parts["test" if digest[0] < 13 else "validation" if digest[0] < 26 else "train"] += [text, DOCUMENT_END]
        for split, path in files.items():
            write_whole(Path(path), b"".join(parts[split]))
    return files


def _sources(root: str, below: str = "") -> Iterator[tuple[str, str, int]]:
    """Yields the .py files below a folder, without installed packages: path from the root with /, path, bytes."""
    for entry in os.scandir(os.path.join(root, below)):
        relative = f"{below}{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            if entry.name not in ("site-packages", "dist-packages", "__pycache__"):
                yield from _sources(root, f"{relative}/")
        elif entry.name.endswith(".py"):
            yield relative, entry.path, entry.stat().st_size


def _map_bytes(path: str, *, check: bool = False) -> np.ndarray:
    try:
        here = plain_text(path, cache_folder()) if check else on_this_machine(path, cache_folder())
        if os.path.getsize(here) == 0:
            raise UsageError(f"The text file '{path}' is empty.")
        return np.memmap(here, np.uint8, mode="r")
    except OSError as error:
        raise UsageError(f"The text file '{path}' cannot be read: {error.strerror or error}.") from error


def texts_between(separator: bytes, data: np.ndarray) -> Iterator[str]:
    """Yields the texts that `separator` terminates in uint8 data (N,)."""
    for stretch in stretches(data, separator):
        for text in stretch.removesuffix(separator).split(separator):
            yield text.decode("utf-8", errors="replace")


def stretches(data: np.ndarray, separator: bytes, size: int = 2**20) -> Iterator[bytes]:
    """Yields uint8 data (N,) in chunks of about `size` bytes that end after a separator; the last may not."""
    start = 0
    while start < len(data):
        end = min(start + size, len(data))
        while end < len(data) and data[end - 1] != separator[0]:
            following = data[end : end + size]
            found = np.flatnonzero(following == separator[0])
            end += int(found[0]) + 1 if len(found) else len(following)
        yield data[start:end].tobytes()
        start = end


def check_split(split: str) -> str:
    """Returns `split`; raises a UsageError if it is unknown."""
    if split not in SPLITS:
        raise UsageError(f"Unknown split '{split}'. {did_you_mean(split, SPLITS)}")
    return split


def check_fractions(fractions: tuple[float, ...]) -> None:
    """Raises a UsageError unless `fractions` are valid shares of three splits."""
    if len(fractions) != 3 or min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-6:
        raise UsageError(f"Split fractions must be three numbers of at least 0 with sum 1 (got {tuple(fractions)}).")
