"""The files of a token cache: parts that are whole or not there, in a local folder or a remote one."""

import dataclasses
import functools
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import fsspec
import numpy as np

from layers.errors import UsageError
from tasks.inputs.corpus import cache_folder

DESCRIPTION = "part.json"
OPEN_FILES = 256  # mappings kept at once


@dataclasses.dataclass(frozen=True)
class StoredSplit:
    """What a part holds of one split."""

    ids: "MappedArray"  # (tokens,)
    ends: "MappedArray"  # int64 (documents,): where documents end, exclusive
    text_bytes: int  # of the documents' text
    counted_bytes: float  # what the vocabulary's token_bytes sum up to

    @property
    def tokens(self) -> int:
        return len(self.ids)

    @property
    def documents(self) -> int:
        return len(self.ends)


@dataclasses.dataclass(frozen=True)
class MappedArray:
    """An array in a file, mapped into memory when it is read, and let go when many others were read since.

    A mapping holds its file open; a cache may have more parts than a process may open files.
    """

    path: str
    dtype: str
    length: int

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, places: slice) -> np.ndarray:
        try:
            return _mapping(self.path, self.dtype)[places] if self.length else np.zeros(0, self.dtype)
        except OSError as error:
            raise UsageError(f"The cached tokens '{self.path}' are gone ({error.strerror}): start again.") from error


@dataclasses.dataclass(frozen=True)
class StoredPart:
    """A part that is whole."""

    splits: dict[str, StoredSplit]
    skipped: dict[str, int]  # reasons why documents were left out, with counts


class PartStore:
    """A folder of parts. A remote one is copied to this machine part by part, on first use."""

    def __init__(self, folder: str | None, name: str):
        remote = folder is not None and "://" in folder
        self.place = f"{str(folder).rstrip('/')}/{name}" if folder else str(cache_folder() / "tokens" / name)
        self._local = cache_folder() / "copies" / _key(self.place) if remote else Path(self.place)
        self._remote = self.place if remote else None

    def open(self, name: str, version: str) -> StoredPart | None:
        """The part, if it is there and whole."""
        folder = self._local / _key(name, version)
        if self._remote is not None and not (folder / DESCRIPTION).exists():
            self._download(folder)
        try:
            described = json.loads((folder / DESCRIPTION).read_text())
            splits = {split: _map(folder, split, counts) for split, counts in described["splits"].items()}
            return StoredPart(splits, described["skipped"])
        except FileNotFoundError:
            if not folder.exists():
                return None
            reason = "a file is missing"
        except (ValueError, KeyError, OSError) as error:
            reason = str(error)
        print(f"The cached tokens of {name} in '{folder}' are damaged ({reason}): made anew.", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        if self._remote is not None:
            self._forget(folder)
        return None

    def writer(self, name: str, version: str, dtype: np.dtype) -> "PartWriter":
        """A part to be filled; it is there when the writer is left without an error."""
        try:
            self._local.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"The folder '{self._local}' cannot be made: {error.strerror or error}.") from error
        return PartWriter(self._local / _key(name, version), {"name": name, "version": version}, dtype, self._upload)

    def _upload(self, folder: Path, name: str) -> None:
        if self._remote is None:
            return
        files = sorted(folder.iterdir(), key=lambda file: file.name == DESCRIPTION)  # what makes it whole goes last
        system, root = _file_system(self._remote)
        system.makedirs(f"{root}/{name}", exist_ok=True)
        for file in files:
            system.put_file(str(file), f"{root}/{name}/{file.name}")

    def _download(self, folder: Path) -> None:
        system, root = _file_system(str(self._remote))
        remote = f"{root}/{folder.name}"
        if not system.exists(f"{remote}/{DESCRIPTION}"):
            return
        self._local.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._local, prefix="copying-") as part:
            for path in system.ls(remote, detail=False):
                system.get_file(path, str(Path(part, Path(path).name)))
            _rename(Path(part), folder)

    def _forget(self, folder: Path) -> None:
        system, root = _file_system(str(self._remote))
        remote = f"{root}/{folder.name}"
        if system.exists(f"{remote}/{DESCRIPTION}"):
            system.rm_file(f"{remote}/{DESCRIPTION}")


class PartWriter:
    """Takes the documents of a part, in a folder of its own that goes away where the build is cut off."""

    def __init__(self, target: Path, described: dict[str, Any], dtype: np.dtype, then: Any):
        self.skipped: dict[str, int] = {}
        self._target, self._described, self._dtype, self._then = target, described, dtype, then
        self._files: dict[str, tuple[BinaryIO, BinaryIO]] = {}
        self._counts: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> "PartWriter":
        self._building = tempfile.TemporaryDirectory(dir=self._target.parent, prefix="building-")
        self._folder = Path(self._building.name)
        return self

    def add(self, split: str, ids: np.ndarray, text_bytes: float, counted_bytes: float) -> None:
        """Appends a document to a split."""
        if split not in self._files:
            self._files[split] = (
                (self._folder / f"{split}.ids").open("wb"),
                (self._folder / f"{split}.ends").open("wb"),
            )
            self._counts[split] = {"tokens": 0, "documents": 0, "text_bytes": 0, "counted_bytes": 0.0}
        counts, (ids_file, ends_file) = self._counts[split], self._files[split]
        counts["tokens"] += len(ids)
        counts["documents"] += 1
        counts["text_bytes"] += int(text_bytes)
        counts["counted_bytes"] += float(counted_bytes)
        ids_file.write(ids.tobytes())
        ends_file.write(np.int64(counts["tokens"]).tobytes())

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for file in (file for pair in self._files.values() for file in pair):
            file.close()
        try:
            if kind is None:
                for counts in self._counts.values():
                    counts["dtype"] = self._dtype.str
                described = {**self._described, "splits": self._counts, "skipped": self.skipped}
                (self._folder / DESCRIPTION).write_text(json.dumps(described, indent=1))
                self._then(self._folder, self._target.name)
                _rename(self._folder, self._target)
        finally:
            self._building.cleanup()


def _map(folder: Path, split: str, counts: dict[str, Any]) -> StoredSplit:
    dtype = counts["dtype"]
    arrays = {}
    for name, kind, length in (("ids", dtype, counts["tokens"]), ("ends", "<i8", counts["documents"])):
        file = folder / f"{split}.{name}"
        size = length * np.dtype(kind).itemsize
        if file.stat().st_size != size:
            raise ValueError(f"{file.name} has {file.stat().st_size} bytes instead of {size}")
        arrays[name] = MappedArray(str(file), kind, length)
    return StoredSplit(**arrays, text_bytes=counts["text_bytes"], counted_bytes=counts["counted_bytes"])


@functools.lru_cache(maxsize=OPEN_FILES)
def _mapping(path: str, dtype: str) -> np.ndarray:
    return np.memmap(path, dtype, mode="r")


def _rename(part: Path, target: Path) -> None:
    """Puts a whole folder in its place, unless another process has put the same one there."""
    try:
        os.rename(part, target)
        part.mkdir()  # its temporary folder expects to be the one who removes it
    except OSError:
        if not (target / DESCRIPTION).exists():
            raise


def _file_system(place: str) -> tuple[Any, str]:
    try:
        return fsspec.core.url_to_fs(place)
    except (ImportError, ValueError) as error:
        raise UsageError(f"The folder '{place}' cannot be reached: {error}.") from error


def _key(*words: str) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]
