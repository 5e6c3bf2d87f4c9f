"""Local and remote files by name, pattern, braces or list: shared code of the sources that read files.

Names with `://` are opened with fsspec (gs://, s3://, hf://, memory://); its packages for them are not dependencies of
this project.
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
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from layers.errors import UsageError, did_you_mean, first_line
from tasks.inputs.files.unpacking import PACKED, unpacked
from tasks.storage.files import file_system, is_remote, require_package, sweep_abandoned, whole_file

BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # some editors write it at the start of UTF-8 files
END_BYTES = 1 << 16  # bytes at each end of a file that its version depends on
TAGS = ("ETag", "etag", "md5Hash", "content_md5", "blob_id")  # names that servers use for a hash of the content


@dataclasses.dataclass(frozen=True)
class File:
    """An existing file and its metadata."""

    name: str  # as given
    info: Any  # os.stat_result of a local file, or the info dict that fsspec returns for a remote one
    linked: bool = False  # a symbolic link

    @property
    def version(self) -> str:
        """A string that changes when the file is written again: size and server tag, or size, time and both ends.

        Raises:
          UsageError: the file cannot be read.
        """
        with _opening(self.name):
            if "://" not in self.name:
                return f"{self.info.st_size} {self.info.st_mtime_ns} {_ends(self.name, self.info)}"
            tag = next((self.info[key] for key in TAGS if self.info.get(key)), None)
            if tag is None:
                system, path = file_system(self.name)
                tag = system.ukey(path)
            return f"{self.info.get('size')} {tag}"


def find(names: str | Sequence[str], what: str) -> dict[str, File]:
    """Returns the files for names, `*` patterns, `{000..017}` and `{a,b}` braces, comma lists and `@file` lists.

    Files are sorted within each pattern, in the order of the names. A name that exists literally is that file.

    Args:
      names: one or several; a list file (`@shards.txt`) has one name per line, `#` starts a comment.
      what: kind of the files, for messages ("JSON lines").

    Returns:
      The files by their resolved path, so that a file with several names (`a`, `./a`, a link) occurs once.

    Raises:
      UsageError: a name matches no file, or is a folder.
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
    """Returns the names of the files that `find` returns, as given."""
    return [file.name for file in find(names, what).values()]


def look(name: str) -> File:
    """Returns the file `name`.

    Raises:
      UsageError: the file does not exist, or is a folder.
    """
    with _opening(name):
        if "://" not in name:
            file = File(name, os.stat(name), os.path.islink(name))
            folder = stat.S_ISDIR(file.info.st_mode)
        else:
            system, path = file_system(name)
            file = File(name, system.info(path))
            folder = file.info["type"] == "directory"
    if folder:
        raise UsageError(f"'{name}' is a folder, not a file. Use '{name.rstrip('/')}/*' for its files.")
    return file


def version(name: str) -> str:
    """Returns the version of a file by name; raises a UsageError if the file does not exist."""
    return look(name).version


def shown(names: str | Sequence[str]) -> str:
    """Returns the names, shortened for messages."""
    if isinstance(names, str):
        return f"'{names}'"
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(f"'{name}'" for name in names[:2]) + more


def braces(pattern: str) -> list[str]:
    """Expands braces: `a-{00..02}.tar` to three names, `{a,b}.txt` to two, several braces to every combination."""
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
    """Yields the file as a byte stream, decompressed if `ending` or else its name is .gz, .tgz, .bz2, .xz or .zst.

    Raises:
      UsageError: the file cannot be opened, or is damaged or cut off (raised from inside the block).
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
    """Yields the file's lines without line ends and byte order mark.

    Raises:
      UsageError: the file cannot be read to its end, or is empty.
    """
    with reading(name) as stream:
        line = stream.readline().removeprefix(BYTE_ORDER_MARK)
        if not line:
            raise UsageError(f"The file '{name}' is empty.")
        while line:
            yield line.rstrip(b"\r\n")
            line = stream.readline()


def size(name: str) -> int:
    """Returns the number of bytes in a file after decompression."""
    with reading(name) as stream:
        if stream.seekable() and not name.endswith(PACKED):
            return stream.seek(0, os.SEEK_END)
        return sum(len(block) for block in iter(lambda: stream.read(1 << 20), b""))


def whole(name: str) -> bytes:
    """Returns all bytes of a file without byte order mark; raises a UsageError if it cannot be read."""
    with reading(name) as stream:
        return stream.read().removeprefix(BYTE_ORDER_MARK)


def local_copy(name: str, cache: Path) -> str:
    """Returns the path of a local copy of a remote file, made once for each version.

    Raises:
      UsageError: the file cannot be read, or changes while it is copied.
    """
    found = look(name)
    key = hashlib.sha256(f"{name}\n{found.version}".encode()).hexdigest()[:16]
    target = cache / "copies" / f"{key}-{name.rpartition('/')[2]}"
    if target.exists():
        return str(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    sweep_abandoned(target.parent)
    with whole_file(target) as part:
        with _opening(name):
            system, path = file_system(name)
            system.get_file(path, str(part))
        if part.stat().st_size != found.info["size"] or look(name).version != found.version:
            raise UsageError(f"The file '{name}' changed while it was copied. Run the command again.")
    return str(target)


def on_this_machine(name: str, cache: Path) -> str:
    """Returns the path of a local file, or of the local copy of a remote one."""
    return local_copy(name, cache) if is_remote(name) else name


def _open(name: str) -> Any:
    if "://" not in name:
        return Path(name).open("rb")
    system, path = file_system(name)
    return system.open(path, "rb")


@contextlib.contextmanager
def _opening(name: str) -> Iterator[None]:
    """Turns errors of finding and opening a file into UsageErrors."""
    require_package(name)
    try:
        yield
    except FileNotFoundError as error:
        raise UsageError(f"The file '{name}' does not exist.{_near(name)}") from error
    except (OSError, ValueError, ImportError) as error:
        raise UsageError(f"The file '{name}' cannot be read: {first_line(error)}.") from error
    except Exception as error:  # storage packages have their own errors: no credentials, no such bucket
        if "://" not in name:
            raise
        raise UsageError(f"The file '{name}' cannot be read: {first_line(error)}.") from error


def _near(name: str) -> str:
    """Returns a space and a "Did you mean" sentence with the most similar name in the folder, or an empty string."""
    folder, last = os.path.split(name)
    if "://" in name or not os.path.isdir(folder or "."):
        return ""
    hint = did_you_mean(last, os.listdir(folder or "."), most=1)
    return f" {hint}" if hint.startswith("Did you mean") else ""


def _listed(name: str, what: str) -> Iterator[File]:
    """Yields the files of one argument: a name, names separated by commas, or an `@file` list."""
    if not name.startswith("@"):
        file = _regular(name)
        yield from [file] if file else itertools.chain.from_iterable(_braced(part, what) for part in _split_names(name))
        return
    try:
        listing = whole(name[1:]).decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"The list '{name[1:]}' of {what} is not text. Write one file name per line.") from error
    for line in listing.splitlines():
        if entry := line.partition("#")[0].strip():
            yield from _braced(entry, what)


def _split_names(names: str) -> list[str]:
    """Splits names at commas outside of braces."""
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
            system, path = file_system(pattern)
            infos = sorted(system.glob(path, detail=True).items())
        found = [File(system.unstrip_protocol(key), info) for key, info in infos if info["type"] != "directory"]
    else:
        found = [file for name in sorted(glob.glob(pattern, recursive=True)) if (file := _regular(name))]
    if not found:
        raise UsageError(f"'{pattern}' matches no file of {what}.")
    return found


def _regular(name: str) -> File | None:
    """Returns the local file with exactly this name, or None; one system call unless it is a link."""
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
    """Returns the resolved path, which is the same for all names of a file."""
    protocol, far, path = file.name.partition("://")
    if far:
        return os.path.realpath(path) if protocol in ("file", "local") else file.name
    if file.linked:
        return os.path.realpath(file.name)
    folder, last = os.path.split(file.name)
    return os.path.join(folder_of(folder or "."), last)


def _ends(name: str, info: os.stat_result) -> str:
    """Returns a hash of the first and last bytes, because another file may have the same size and time."""
    if not stat.S_ISREG(info.st_mode):
        return ""  # reading a pipe would consume its content
    with Path(name).open("rb") as file:
        digest = hashlib.sha256(file.read(END_BYTES))
        if info.st_size > END_BYTES:
            file.seek(max(END_BYTES, info.st_size - END_BYTES))
            digest.update(file.read(END_BYTES))
    return digest.hexdigest()[:16]
