"""Preparation of text files: copied from remote storage, decompressed, and checked for UTF-8 once per version."""

import codecs
import functools
import hashlib
import os
import shutil
from pathlib import Path

from layers.errors import UsageError
from tasks.inputs.files.files import look, on_this_machine, reading
from tasks.inputs.files.unpacking import packing
from tasks.storage.files import sweep_abandoned, whole_file

CHUNK = 1 << 24  # bytes read at a time
REMEMBERED = 1 << 28  # least bytes of a file whose check is recorded in the cache folder: about a second of reading


def plain_text(name: str, cache: Path) -> str:
    """Returns the path of a local file with the decompressed text of `name`.

    Args:
      name: a local or remote file; compressed files (gzip, bzip2, xz, Zstandard) are decompressed into `cache`, once
        for each version.
      cache: folder for copies.

    Raises:
      UsageError: the file cannot be read, or is not UTF-8 text.
    """
    here = on_this_machine(name, cache)
    if os.path.isfile(here):  # a pipe cannot be read twice
        with Path(here).open("rb") as stream:
            head = stream.read(8)
        if ending := packing(head):
            here = _unpacked(here, ending, cache)
        elif head.startswith(b"PK\x03\x04"):
            raise UsageError(f"The text file '{name}' is a zip archive. Unpack it first.")
        _check(here, name, cache)
    return here


def _key(path: str) -> str:
    return hashlib.sha256(f"{os.path.abspath(path)}\n{look(path).version}".encode()).hexdigest()[:16]


def _unpacked(path: str, ending: str, cache: Path) -> str:
    target = cache / "copies" / f"{_key(path)}-{Path(path).stem}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        sweep_abandoned(target.parent)
        with whole_file(target) as part, reading(path, ending) as stream, part.open("wb") as file:
            shutil.copyfileobj(stream, file, CHUNK)
    return str(target)


def _check(path: str, name: str, cache: Path) -> None:
    info = os.stat(path)
    _check_version(path, name, cache, info.st_size, info.st_mtime_ns)


@functools.lru_cache
def _check_version(path: str, name: str, cache: Path, size: int, mtime_ns: int) -> None:
    """Raises a UsageError at the first NUL byte or the first byte that is not UTF-8.

    A character cut off by the end of the file is accepted: enwik8 ends in one.
    """
    mark = cache / "checked" / _key(path) if size >= REMEMBERED else None
    if mark is not None and mark.exists():
        return
    decoder, offset = codecs.getincrementaldecoder("utf-8")(), 0
    with Path(path).open("rb") as stream:
        while chunk := stream.read(CHUNK):
            if (nul := chunk.find(b"\0")) >= 0:
                raise _refused(name, f"NUL byte at offset {offset + nul}")
            pending = len(decoder.getstate()[0])
            try:
                decoder.decode(chunk)
            except UnicodeDecodeError as error:
                at = offset - pending + error.start
                raise _refused(name, f"byte {error.object[error.start]:#04x} at offset {at}") from error
            offset += len(chunk)
    if mark is not None:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()


def _refused(name: str, found: str) -> UsageError:
    return UsageError(
        f"The text file '{name}' is not UTF-8 text ({found}). Set DATA=tokens for token ids, DATA=webdataset "
        f"or DATA=tfrecord for shards; convert text in another encoding to UTF-8."
    )
