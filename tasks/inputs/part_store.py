"""Storage of a token cache: parts that are complete or absent, in a local or remote folder."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import shutil
import tempfile
import uuid
import zlib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, TypedDict

import numpy as np

from layers.errors import UsageError, VortaroError
from tasks.storage.files import cache_folder, file_system, reached, sweep_abandoned
from tasks.storage.json_values import Count, parsed, require_type

DESCRIPTION = "part.json"
OPEN_FILES = 256  # memory mappings kept open at a time


@dataclasses.dataclass(frozen=True)
class StoredSplit:
    """The documents of one split in a part."""

    ids: "MappedArray"  # (tokens,)
    ends: "MappedArray"  # int64 (documents,): ends of the documents, exclusive
    text_bytes: int  # bytes of the documents' text
    counted_bytes: float  # sum of the vocabulary's token_bytes

    @property
    def tokens(self) -> int:
        return len(self.ids)

    @property
    def documents(self) -> int:
        return len(self.ends)


@dataclasses.dataclass(frozen=True)
class StoredPart:
    """A complete part."""

    splits: dict[str, StoredSplit]
    skipped: dict[str, int]  # number of skipped documents by reason


@dataclasses.dataclass(frozen=True)
class MappedArray:
    """An array in a file, mapped into memory on access; the least recently used mappings are closed.

    A mapping keeps its file open, and a cache may have more parts than a process may open files.
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
            raise VortaroError(f"The cached tokens '{self.path}' cannot be read: {error.strerror}.") from error


class PartStore:
    """A folder of parts. Parts of a remote folder are copied to this machine when they are opened."""

    def __init__(self, folder: str | None, name: str):
        remote = folder is not None and "://" in folder
        self.place = f"{str(folder).rstrip('/')}/{name}" if folder else str(cache_folder() / "tokens" / name)
        self._local = cache_folder() / "copies" / _key(self.place) if remote else Path(self.place)
        self._remote = self.place if remote else None

    def open(self, name: str, version: str) -> StoredPart | None:
        """Returns the part, or None if it does not exist or is damaged.

        A part whose files have other sizes than its description records is removed, with a printed message.

        Raises:
          UsageError: the folder exists but cannot be read.
        """
        folder = self._local / _key(name, version)
        if self._remote is not None and not (folder / DESCRIPTION).exists():
            self._download(folder)
        try:
            content = (folder / DESCRIPTION).read_bytes()
        except FileNotFoundError:
            return None  # every complete part has a description
        except OSError as error:
            raise UsageError(f"The cached tokens in '{folder}' cannot be read: {error.strerror or error}.") from error
        try:
            description = _described(content)
            splits = {split: _map(folder, split, counts) for split, counts in description["splits"].items()}
            return StoredPart(splits, description["skipped"])
        except (ValueError, FileNotFoundError) as error:
            print(f"The cached tokens of {name} in '{folder}' are damaged ({error}) and will be rebuilt.", flush=True)
            _remove(folder)
            return None

    def writer(self, name: str, version: str, dtype: np.dtype) -> "PartWriter":
        """Returns a writer, a context manager; the part exists after the block ends without an error."""
        try:
            self._local.mkdir(parents=True, exist_ok=True)
            sweep_abandoned(self._local)
        except OSError as error:
            raise UsageError(f"The folder '{self._local}' cannot be written: {error.strerror or error}.") from error
        return PartWriter(self._local / _key(name, version), {"name": name, "version": version}, dtype, self._upload)

    def _upload(self, folder: Path) -> None:
        if self._remote is None:
            return
        files = sorted(
            folder.iterdir(), key=lambda file: file.name == DESCRIPTION
        )  # the description completes a part: upload it last
        with reached(self._remote, kind="The token cache"):
            system, root = file_system(self._remote)
            system.makedirs(f"{root}/{folder.name}", exist_ok=True)
            for file in files:
                system.put_file(str(file), f"{root}/{folder.name}/{file.name}")

    def _download(self, folder: Path) -> None:
        with reached(str(self._remote), kind="The token cache"):
            system, root = file_system(str(self._remote))
            remote = f"{root}/{folder.name}"
            if not system.exists(f"{remote}/{DESCRIPTION}"):
                return
            self._local.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._local, prefix="copying-") as part:
                for path in system.ls(remote, detail=False):
                    system.get_file(path, str(Path(part, Path(path).name)))
                if _is_sound(Path(part)):
                    _rename(Path(part), folder)
                else:
                    print(f"The cached tokens in '{remote}' are damaged and will be rebuilt.", flush=True)
                    system.rm_file(f"{remote}/{DESCRIPTION}")


class PartWriter:
    """Writes the documents of a part into a temporary folder, which is removed if the build is interrupted."""

    def __init__(self, target: Path, identity: dict[str, Any], dtype: np.dtype, on_complete: Callable[[Path], None]):
        self.skipped: dict[str, int] = {}
        self._target, self._identity, self._dtype, self._on_complete = target, identity, dtype, on_complete
        self._files: dict[str, tuple[_ChecksummedFile, _ChecksummedFile]] = {}
        self._counts: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> "PartWriter":
        self._building = tempfile.TemporaryDirectory(dir=self._target.parent, prefix="building-")
        self._folder = Path(self._building.name)
        return self

    def add(self, split: str, ids: np.ndarray, text_bytes: float, counted_bytes: float) -> None:
        """Appends a document to a split."""
        if split not in self._files:
            self._files[split] = (
                _ChecksummedFile(self._folder / f"{split}.ids"),
                _ChecksummedFile(self._folder / f"{split}.ends"),
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
                self._describe()
                _rename(self._folder, self._target)
        except OSError as write_error:
            raise VortaroError(
                f"Tokens cannot be written to '{self._target.parent}': {write_error.strerror}."
            ) from write_error
        finally:
            self._building.cleanup()
        if kind is None:
            self._on_complete(self._target)

    def _describe(self) -> None:
        for split, counts in self._counts.items():
            counts["dtype"] = self._dtype.str
            counts["crc32"] = [file.crc for file in self._files[split]]
        description = {**self._identity, "splits": self._counts, "skipped": self.skipped}
        with (self._folder / DESCRIPTION).open("w") as file:
            json.dump(description, file, indent=1)
            file.flush()
            os.fsync(file.fileno())


class _ChecksummedFile:
    """A file opened for writing, with the CRC-32 of its content; `close` syncs it to disk."""

    def __init__(self, path: Path):
        self._file: BinaryIO = path.open("wb")
        self.crc = 0

    def write(self, content: bytes) -> None:
        self._file.write(content)
        self.crc = zlib.crc32(content, self.crc)

    def close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


class _Counts(TypedDict):
    dtype: Literal["<u2", "<u4"]
    tokens: Count
    documents: Count
    text_bytes: Count
    counted_bytes: float
    crc32: tuple[Count, Count]


class _Description(TypedDict):
    splits: dict[Literal["train", "validation", "test"], _Counts]
    skipped: dict[str, Count]


def _described(content: bytes) -> dict[str, Any]:
    """Returns the description of a part; raises a ValueError if it is damaged."""
    description = parsed(content)
    require_type(description, _Description, "the description")
    return description


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


def _is_sound(folder: Path) -> bool:
    """Returns whether the files of a part have the checksums in its description."""
    try:
        description = _described((folder / DESCRIPTION).read_bytes())
        checksums = {
            f"{split}.{name}": crc
            for split, counts in description["splits"].items()
            for name, crc in zip(("ids", "ends"), counts["crc32"], strict=True)
        }
        return all(zlib.crc32((folder / name).read_bytes()) == crc for name, crc in checksums.items())
    except (ValueError, FileNotFoundError):
        return False


def _rename(part: Path, target: Path) -> None:
    """Moves a complete folder to `target`, unless another process has already written the same part there."""
    try:
        os.rename(part, target)
        part.mkdir()  # TemporaryDirectory removes it on cleanup
    except OSError:
        if (target / DESCRIPTION).exists():
            return
        if not target.exists():
            raise
        print(
            f"The cached tokens in '{target}' are damaged ({DESCRIPTION} is missing) and will be rebuilt.", flush=True
        )
        _remove(target)
        os.rename(part, target)
        part.mkdir()


def _remove(folder: Path) -> None:
    """Removes a folder: renames it first, so that no process sees a partial one."""
    trash = folder.parent / f"removing-{uuid.uuid4().hex}"
    with contextlib.suppress(OSError):
        os.rename(folder, trash)
        shutil.rmtree(trash, ignore_errors=True)


def _key(*words: str) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]
