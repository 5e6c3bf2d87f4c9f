"""Files by name, pattern, braces or list, here or far away: what sources of many files share.

Names with `://` go through fsspec (gs://, s3://, hf://, memory://), whose packages for them are the user's to install.
"""

import contextlib
import glob
import itertools
import lzma
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fsspec

from layers.errors import UsageError, did_you_mean
from tasks.inputs.sources.unpacking import PACKED, unpacked

BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # some editors begin UTF-8 files with it; it is no text


def expand(names: str | Sequence[str], what: str) -> list[str]:
    """Files that the names stand for: names, `*` patterns, `{000..017}` and `{a,b}` braces, commas, `@file` of names.

    Sorted within each pattern, in the order of the names; a file that several of them stand for comes once. A name
    that is a file as it stands, is that file.

    Args:
      names: one or several; an index file (`@shards.txt`) has one name a line, `#` begins a comment.
      what: what the files are, for the message ("JSON lines").

    Raises:
      UsageError: a name stands for no file, or for a folder.
    """
    listed = [names] if isinstance(names, str) else list(names)
    found: dict[str, None] = {}
    for name in itertools.chain.from_iterable(_listed(name, what) for name in listed):
        for pattern in [name] if os.path.isfile(name) else braces(name):
            found |= dict.fromkeys(_matches(pattern, what))
    if not found:
        raise UsageError(f"No files of {what} are named.")
    return list(found)


def shown(names: str | Sequence[str]) -> str:
    """The names in few words, for a person."""
    if isinstance(names, str):
        return f"'{names}'"
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(f"'{name}'" for name in names[:2]) + more


def braces(pattern: str) -> list[str]:
    """`a-{00..02}.tar` as three names, `{a,b}.txt` as two; several braces give every combination."""
    found = re.search(r"\{([^{}]*)\}", pattern)
    if not found:
        return [pattern]
    inside = found.group(1)
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", inside)
    if numbers:
        low, high = (int(number) for number in numbers.groups())
        step = 1 if low <= high else -1
        values = [str(i).zfill(len(numbers.group(1))) for i in range(low, high + step, step)]
    else:
        values = inside.split(",")
    return [name for value in values for name in braces(pattern[: found.start()] + value + pattern[found.end() :])]


def version(name: str) -> str:
    """Size and time of a file, what its server knows of it: changes when it is written again.

    Raises:
      UsageError: there is no such file, or it is a folder.
    """
    with _opening(name):
        if "://" not in name:
            stat = os.stat(name)
            folder, found = os.path.isdir(name), f"{stat.st_size} {stat.st_mtime_ns}"
        else:
            system, path = fsspec.url_to_fs(name)
            info = system.info(path)
            folder, found = info["type"] == "directory", f"{info.get('size')} {system.ukey(path)}"
    if folder:
        raise UsageError(f"'{name}' is a folder, but files are read here: say '{name.rstrip('/')}/*'.")
    return found


@contextlib.contextmanager
def reading(name: str) -> Iterator[Any]:
    """The file's bytes as a stream, unpacked where its name ends in .gz, .tgz, .bz2, .xz or .zst.

    Raises:
      UsageError: it cannot be opened, or what is read turns out to be damaged or cut off (from inside the block).
    """
    with contextlib.ExitStack() as streams:
        with _opening(name):
            raw = streams.enter_context(_open(name))
            stream = streams.enter_context(unpacked(name, raw))
        try:
            yield stream
        except (EOFError, zlib.error, lzma.LZMAError) as error:
            raise UsageError(f"The file '{name}' is damaged or cut off: {_reason(error)}.") from error
        except OSError as error:
            raise UsageError(f"The file '{name}' cannot be read to its end: {_reason(error)}.") from error


def lines(name: str) -> Iterator[bytes]:
    """The file's lines without their ends, a byte order mark left out.

    Raises:
      UsageError: it cannot be read to its end, or is empty.
    """
    with reading(name) as stream:
        line = stream.readline().removeprefix(BYTE_ORDER_MARK)
        if not line:
            raise UsageError(f"The file '{name}' is empty.")
        while line:
            yield line.rstrip(b"\r\n")
            line = stream.readline()


def size(name: str) -> int:
    """Bytes in a file, unpacked."""
    with reading(name) as stream:
        if stream.seekable() and not name.endswith(PACKED):
            return stream.seek(0, os.SEEK_END)
        return sum(len(block) for block in iter(lambda: stream.read(1 << 20), b""))


def whole(name: str) -> bytes:
    """All bytes of a file, a byte order mark left out; a UsageError where it cannot be read."""
    with reading(name) as stream:
        return stream.read().removeprefix(BYTE_ORDER_MARK)


def _open(name: str) -> Any:
    if "://" not in name:
        return Path(name).open("rb")
    system, path = fsspec.url_to_fs(name)
    return system.open(path, "rb")


@contextlib.contextmanager
def _opening(name: str) -> Iterator[None]:
    """Errors of finding a file, as one sentence each."""
    try:
        yield
    except FileNotFoundError as error:
        raise UsageError(f"There is no file '{name}' (any more).{_near(name)}") from error
    except (OSError, ValueError, ImportError) as error:
        raise UsageError(f"The file '{name}' cannot be read: {_reason(error)}.") from error
    except Exception as error:  # packages for servers raise their own: no credentials, no such bucket
        if "://" not in name:
            raise
        raise UsageError(f"The file '{name}' cannot be read: {_reason(error)}.") from error


def _near(name: str) -> str:
    """The file of that folder that was meant, as a sentence behind a space."""
    folder, last = os.path.split(name)
    if "://" in name or not os.path.isdir(folder or "."):
        return ""
    hint = did_you_mean(last, os.listdir(folder or "."), most=1)
    return f" {hint}" if hint.startswith("Did you mean") else ""


def _reason(error: BaseException) -> str:
    text = str(getattr(error, "strerror", None) or error or type(error).__name__)
    return text.strip().partition("\n")[0].rstrip(".")


def _listed(name: str, what: str) -> list[str]:
    if not name.startswith("@"):
        return [name] if os.path.isfile(name) else _apart(name)
    try:
        listing = whole(name[1:]).decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"The list '{name[1:]}' of {what} is no text: it has one file name a line.") from error
    names = [line.partition("#")[0].strip() for line in listing.splitlines()]
    return [line for line in names if line]


def _apart(names: str) -> list[str]:
    """Names between commas outside of braces."""
    return [part.strip() for part in re.split(r",(?![^{]*\})", names) if part.strip()]


def _matches(pattern: str, what: str) -> list[str]:
    if os.path.isfile(pattern) or not glob.has_magic(pattern):
        version(pattern)
        return [pattern]
    if "://" in pattern:
        with _opening(pattern):
            system, path = fsspec.url_to_fs(pattern)
            infos = system.glob(path, detail=True)
        found = sorted(system.unstrip_protocol(key) for key, info in infos.items() if info["type"] != "directory")
    else:
        found = sorted(name for name in glob.glob(pattern, recursive=True) if os.path.isfile(name))
    if not found:
        raise UsageError(f"'{pattern}' matches no file of {what}.")
    return found
