"""Files by name, pattern, braces or list, here or far away: what sources of many files share.

Names with `://` go through fsspec (gs://, s3://, hf://, memory://), whose packages for them are the user's to install.
"""

import contextlib
import dataclasses
import functools
import glob
import hashlib
import itertools
import lzma
import os
import re
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import fsspec

from layers.errors import UsageError, did_you_mean, first_line
from tasks.inputs.files.unpacking import PACKED, unpacked
from tasks.storage.files import is_remote, require_package, sweep_abandoned

BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # some editors begin UTF-8 files with it; it is no text
END_BYTES = 1 << 16  # at each end of a file, which its version looks at
TAGS = ("ETag", "etag", "md5Hash", "content_md5", "blob_id")  # what servers call a mark of the content


@dataclasses.dataclass(frozen=True)
class File:
    """A file that is there, and what was learned of it on the way."""

    name: str  # as it was named
    info: Any  # os.stat_result of a local file; of a remote one what its server lists
    linked: bool = False  # a symbolic link

    @property
    def version(self) -> str:
        """Changes when the file is written again: what its server knows; of a local file size, time and both ends.

        Raises:
          UsageError: it cannot be read (any more).
        """
        with _opening(self.name):
            if "://" not in self.name:
                return f"{self.info.st_size} {self.info.st_mtime_ns} {_ends(self.name, self.info)}"
            tag = next((self.info[key] for key in TAGS if self.info.get(key)), None)
            if tag is None:
                system, path = fsspec.url_to_fs(self.name)
                tag = system.ukey(path)
            return f"{self.info.get('size')} {tag}"


def find(names: str | Sequence[str], what: str) -> dict[str, File]:
    """Files that the names stand for: names, `*` patterns, `{000..017}` and `{a,b}` braces, commas, `@file` of names.

    Sorted within each pattern, in the order of the names. A name that is a file as it stands, is that file.

    Args:
      names: one or several; an index file (`@shards.txt`) has one name a line, `#` begins a comment.
      what: what the files are, for the message ("JSON lines").

    Returns:
      The files by where they are, so that one comes once that several names stand for: `a`, `./a`, a link to it.

    Raises:
      UsageError: a name stands for no file, or for a folder.
    """
    folder_of = functools.cache(lambda folder: os.path.realpath(folder))
    found: dict[str, File] = {}
    for name in [names] if isinstance(names, str) else names:
        for file in _listed(name, what):
            found.setdefault(_place(file, folder_of), file)
    if not found:
        raise UsageError(f"No files of {what} are named.")
    return found


def expand(names: str | Sequence[str], what: str) -> list[str]:
    """The names of the files that `find` finds, as they are written."""
    return [file.name for file in find(names, what).values()]


def look(name: str) -> File:
    """The file of a name.

    Raises:
      UsageError: there is no such file, or it is a folder.
    """
    with _opening(name):
        if "://" not in name:
            file = File(name, os.stat(name), os.path.islink(name))
            folder = stat.S_ISDIR(file.info.st_mode)
        else:
            system, path = fsspec.url_to_fs(name)
            file = File(name, system.info(path))
            folder = file.info["type"] == "directory"
    if folder:
        raise UsageError(f"'{name}' is a folder, but files are read here: say '{name.rstrip('/')}/*'.")
    return file


def version(name: str) -> str:
    """The version of a file by name; a UsageError where there is none."""
    return look(name).version


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


@contextlib.contextmanager
def reading(name: str, ending: str | None = None) -> Iterator[Any]:
    """The file's bytes as a stream, unpacked if its name ends in .gz, .tgz, .bz2, .xz or .zst, or if `ending` does.

    Raises:
      UsageError: it cannot be opened, or what is read turns out to be damaged or cut off (from inside the block).
    """
    with contextlib.ExitStack() as streams:
        with _opening(name):
            raw = streams.enter_context(_open(name))
            stream = streams.enter_context(unpacked(ending or name, raw))
        try:
            yield stream
        except (EOFError, zlib.error, lzma.LZMAError) as error:
            raise UsageError(f"The file '{name}' is damaged or cut off: {first_line(error)}.") from error
        except OSError as error:
            raise UsageError(f"The file '{name}' cannot be read to its end: {first_line(error)}.") from error


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


def local_copy(name: str, cache: Path) -> str:
    """The path of a copy of a remote file, made once for each version of it.

    Raises:
      UsageError: it cannot be read, or changes while it is copied.
    """
    found = look(name)
    key = hashlib.sha256(f"{name}\n{found.version}".encode()).hexdigest()[:16]
    target = cache / "copies" / f"{key}-{name.rpartition('/')[2]}"
    if target.exists():
        return str(target)
    with filled(target, "copying-") as part:
        with _opening(name):
            system, path = fsspec.url_to_fs(name)
            system.get_file(path, str(part))
        if part.stat().st_size != found.info["size"] or look(name).version != found.version:
            raise UsageError(f"The file '{name}' changed while it was copied: start again.")
    return str(target)


def on_this_machine(name: str, cache: Path) -> str:
    """The path of a file here, or of the local copy of a remote one."""
    return local_copy(name, cache) if is_remote(name) else name


@contextlib.contextmanager
def filled(target: Path, prefix: str) -> Iterator[Path]:
    """A path to write a file to, which becomes `target` if nothing fails, and is removed otherwise.

    Args:
      target: where the file shall be; parts that killed processes left in its folder a day ago are removed.
      prefix: how the temporary folder's name begins, one of `tasks.storage.files.TEMPORARY`.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    sweep_abandoned(target.parent)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=prefix) as folder:
        part = Path(folder, "part")
        yield part
        os.replace(part, target)


def _open(name: str) -> Any:
    if "://" not in name:
        return Path(name).open("rb")
    system, path = fsspec.url_to_fs(name)
    return system.open(path, "rb")


@contextlib.contextmanager
def _opening(name: str) -> Iterator[None]:
    """Errors of finding a file, as one sentence each."""
    require_package(name)
    try:
        yield
    except FileNotFoundError as error:
        raise UsageError(f"There is no file '{name}' (any more).{_near(name)}") from error
    except (OSError, ValueError, ImportError) as error:
        raise UsageError(f"The file '{name}' cannot be read: {first_line(error)}.") from error
    except Exception as error:  # packages for servers raise their own: no credentials, no such bucket
        if "://" not in name:
            raise
        raise UsageError(f"The file '{name}' cannot be read: {first_line(error)}.") from error


def _near(name: str) -> str:
    """The file of that folder that was meant, as a sentence behind a space."""
    folder, last = os.path.split(name)
    if "://" in name or not os.path.isdir(folder or "."):
        return ""
    hint = did_you_mean(last, os.listdir(folder or "."), most=1)
    return f" {hint}" if hint.startswith("Did you mean") else ""


def _listed(name: str, what: str) -> Iterator[File]:
    """The files of one name, which may be several with commas, or a list."""
    if not name.startswith("@"):
        file = _regular(name)
        yield from [file] if file else itertools.chain.from_iterable(_braced(part, what) for part in _apart(name))
        return
    try:
        listing = whole(name[1:]).decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"The list '{name[1:]}' of {what} is no text: it has one file name a line.") from error
    for line in listing.splitlines():
        if entry := line.partition("#")[0].strip():
            yield from _braced(entry, what)


def _apart(names: str) -> list[str]:
    """Names between commas outside of braces."""
    return [part.strip() for part in re.split(r",(?![^{]*\})", names) if part.strip()]


def _braced(name: str, what: str) -> Iterator[File]:
    file = _regular(name)
    yield from [file] if file else itertools.chain.from_iterable(_matches(one, what) for one in braces(name))


def _matches(pattern: str, what: str) -> list[File]:
    file = _regular(pattern)
    if file or not glob.has_magic(pattern):
        return [file or look(pattern)]
    if "://" in pattern:
        with _opening(pattern):
            system, path = fsspec.url_to_fs(pattern)
            infos = sorted(system.glob(path, detail=True).items())
        found = [File(system.unstrip_protocol(key), info) for key, info in infos if info["type"] != "directory"]
    else:
        found = [file for name in sorted(glob.glob(pattern, recursive=True)) if (file := _regular(name))]
    if not found:
        raise UsageError(f"'{pattern}' matches no file of {what}.")
    return found


def _regular(name: str) -> File | None:
    """The local file of that very name, if there is one; one call to the system where it is no link."""
    if "://" in name:
        return None
    try:
        info = os.lstat(name)
        linked = stat.S_ISLNK(info.st_mode)
        info = os.stat(name) if linked else info
    except (OSError, ValueError):
        return None
    return File(name, info, linked) if stat.S_ISREG(info.st_mode) else None


def _place(file: File, folder_of: Callable[[str], str]) -> str:
    """The same for all names of a file."""
    protocol, far, path = file.name.partition("://")
    if far:
        return os.path.realpath(path) if protocol in ("file", "local") else file.name
    if file.linked:
        return os.path.realpath(file.name)
    folder, last = os.path.split(file.name)
    return os.path.join(folder_of(folder or "."), last)


def _ends(name: str, info: os.stat_result) -> str:
    """A hash of the first and last bytes: copies keep time and size, and so may another file in the same place."""
    if not stat.S_ISREG(info.st_mode):
        return ""  # what is read from a pipe is gone
    with Path(name).open("rb") as file:
        digest = hashlib.sha256(file.read(END_BYTES))
        if info.st_size > END_BYTES:
            file.seek(max(END_BYTES, info.st_size - END_BYTES))
            digest.update(file.read(END_BYTES))
    return digest.hexdigest()[:16]
