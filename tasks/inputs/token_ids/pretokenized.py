"""Memory-mapped files of token ids written by other programs: numpy, nanoGPT, llm.c, Megatron."""

import dataclasses
import os
from typing import NamedTuple

import numpy as np

from layers.errors import UsageError, first_line
from tasks.inputs.byte_text import SPLITS, check_fractions, check_split
from tasks.inputs.files import files, npy
from tasks.inputs.files.files import File
from tasks.inputs.sources.file_source import Names, refuse_shared
from tasks.inputs.token_ids.megatron import document_ends

HEADER_BYTES = 1024  # of llm.c files: 256 int32, the first a magic number, the third the number of ids
HEADERS = {20240520: "uint16", 20240801: "uint32"}  # llm.c, dev/data/data_common.py: ids of GPT-2 and of Llama 3
DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64")


class Tokens(NamedTuple):
    """The ids of one file, or of a range of it."""

    ids: np.ndarray  # (N,) integers of the file's dtype, memory-mapped
    ends: np.ndarray | None  # (D,) int64, ends of the documents, exclusive; None if the file does not contain them


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenFiles:
    """Files of token ids, in the order of their names.

    * `.npy`: a 1-D array of integers.
    * `.bin`: consecutive ids of `dtype` (nanoGPT); or ids after an llm.c header, which is detected; or ids with an
      index file `.idx` of the same name (Megatron), which contains the dtype and the documents.
    * `.idx`: the same pair of Megatron files.

    Without validation and test files, the ids are cut in order by `fractions`, at the end of a document if those are
    known.
    """

    files: Names  # local names, patterns, braces, or @file with one name per line
    dtype: str = "uint16"  # of `.bin` files without header or index, little-endian
    validation_files: Names | None = None  # files of the validation split
    test_files: Names | None = None  # files of the test split
    fractions: tuple[float, float, float] = (0.9, 0.05, 0.05)  # of the ids, if no such files are named

    def describe(self) -> str:
        """Returns a description of the data for messages."""
        return f"token ids in {files.shown(self.files)}"

    def arrays(self, split: str) -> list[Tokens]:
        """Returns the ids of a split and the ends of its documents, for each file with ids of the split.

        Raises:
          UsageError: unknown split, missing file, or a file whose content does not match its extension.
        """
        check_split(split)
        if self.validation_files is None and self.test_files is None:
            return self._carved(split)
        named = {"train": self.files, "validation": self.validation_files, "test": self.test_files}
        found = {key: self._find(names) for key, names in named.items() if names is not None}
        if split not in found:
            raise UsageError(f"The {split} split of {self.describe()} has no files. Set {split.upper()}_PATH.")
        refuse_shared(found)
        return self._read(found[split])

    def version(self) -> str:
        """Returns a string that changes when one of the files does."""
        named = (self.files, self.validation_files, self.test_files)
        found = [file for names in named if names is not None for file in self._find(names).values()]
        indexes = (f"{file.name[:-4]}.idx" for file in found)
        found += [files.look(index) for index in indexes if os.path.exists(index)]
        return "\n".join(f"{file.name} {file.version}" for file in found)

    def _carved(self, split: str) -> list[Tokens]:
        check_fractions(self.fractions)
        complete = self._read(self._find(self.files))
        total, place = sum(len(tokens.ids) for tokens in complete), SPLITS.index(split)
        start, stop = (round(total * sum(self.fractions[:i])) for i in (place, place + 1))
        found, before = [], 0
        for tokens in complete:
            part = _stretch(tokens, start - before, stop - before)
            before += len(tokens.ids)
            if len(part.ids):
                found.append(part)
        if not found:
            raise UsageError(f"The {split} split, {self.fractions[place]:.0%} of {self.describe()}, has no ids.")
        return found

    def _read(self, found: dict[str, File]) -> list[Tokens]:
        return [_read(file.name, self.dtype) for file in found.values()]

    def _find(self, names: Names) -> dict[str, File]:
        """Returns the files by their resolved path; for an index, the file of its ids."""
        found: dict[str, File] = {}
        for place, file in files.find(names, "token ids").items():
            index = file.name.endswith(".idx")
            ids = files.look(f"{file.name[:-4]}.bin") if index else file
            found.setdefault(f"{place[:-4]}.bin" if index else place, ids)
        return found


def _stretch(tokens: Tokens, start: int, stop: int) -> Tokens:
    """Returns the ids start ... stop - 1, clipped to the file; both bounds are moved to the next document end."""
    start, stop = (min(max(place, 0), len(tokens.ids)) for place in (start, stop))
    if tokens.ends is None:
        return Tokens(tokens.ids[start:stop], None)
    places = np.concatenate([np.zeros(1, np.int64), tokens.ends])
    start, stop = (int(places[np.searchsorted(places, place)]) for place in (start, stop))
    return Tokens(tokens.ids[start:stop], tokens.ends[(tokens.ends > start) & (tokens.ends <= stop)] - start)


def _read(name: str, dtype: str) -> Tokens:
    if "://" in name:
        raise UsageError(f"'{name}' is remote, but files of token ids are mapped into memory. Copy it to this machine.")
    size = os.path.getsize(name)
    if not size:
        raise UsageError(f"The file of token ids '{name}' is empty.")
    try:
        if name.endswith(".npy"):
            return Tokens(_array(name), None)
        if name.endswith(".bin"):
            return _raw(name, dtype, size)
    except (OSError, ValueError) as error:
        raise UsageError(f"The file of token ids '{name}' cannot be read: {first_line(error)}.") from error
    raise UsageError(f"'{name}' is not a file of token ids. Their names end in .npy or .bin.")


def _array(name: str) -> np.ndarray:
    array = npy.mapped(name)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise UsageError(f"'{name}' holds a {array.ndim}-D array of {array.dtype}. Token ids must be 1-D integers.")
    if not len(array):
        raise UsageError(f"The file of token ids '{name}' is empty.")
    return array


def _raw(name: str, dtype: str, size: int) -> Tokens:
    index = f"{name[:-4]}.idx"
    if os.path.exists(index):
        dtype, ends = document_ends(index, size)
        return Tokens(np.memmap(name, dtype, mode="r"), ends)
    header = np.fromfile(name, "<i4", 3) if size >= HEADER_BYTES else np.zeros(3, "<i4")
    if header[0] in HEADERS:
        ids = np.memmap(name, np.dtype(HEADERS[int(header[0])]), mode="r", offset=HEADER_BYTES)
        if len(ids) != header[2]:
            raise UsageError(f"'{name}' is cut off: its header counts {header[2]:,} ids, but it has {len(ids):,}.")
        return Tokens(ids, None)
    if dtype not in DTYPES:
        raise UsageError(f"Token ids of dtype '{dtype}' are not supported. Valid: {', '.join(DTYPES)}.")
    width = np.dtype(dtype).itemsize
    if size % width:
        raise UsageError(
            f"'{name}' has {size:,} bytes, not a multiple of {width} ({dtype}). It is cut off, or has another dtype."
        )
    return Tokens(np.memmap(name, dtype, mode="r"), None)
