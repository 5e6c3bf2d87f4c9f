"""Files by name, pattern, braces or list: what sources of many files share."""

import glob
import io
import itertools
import re
from collections.abc import Sequence
from typing import Any

import fsspec
from etils import epath

from layers.errors import UsageError


def expand(names: str | Sequence[str], what: str) -> list[str]:
    """Files that the names stand for: names, `*` patterns, `{000..017}` and `{a,b}` braces, commas, `@file` of names.

    Sorted within each pattern, in the order of the names.

    Args:
      names: one or several; an index file (`@shards.txt`) has one name a line, `#` begins a comment.
      what: what the files are, for the message ("JSON lines").

    Raises:
      UsageError: a name stands for no file, or one is empty.
    """
    listed = [names] if isinstance(names, str) else list(names)
    files: list[str] = []
    for name in itertools.chain.from_iterable(_listed(name, what) for name in listed):
        for pattern in braces(name):
            files += _matches(pattern, what)
    if not files:
        raise UsageError(f"No files of {what} are named.")
    return files


def braces(pattern: str) -> list[str]:
    """`a-{00..02}.tar` as three names, `{a,b}.txt` as two; several braces give every combination."""
    found = re.search(r"\{([^{}]*)\}", pattern)
    if not found:
        return [pattern]
    inside = found.group(1)
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", inside)
    if numbers:
        low, high = numbers.groups()
        values = [str(i).zfill(len(low)) for i in range(int(low), int(high) + 1)]
    else:
        values = inside.split(",")
    return [name for value in values for name in braces(pattern[: found.start()] + value + pattern[found.end() :])]


def version(name: str) -> str:
    """Size and time of a file: changes when it is written again."""
    try:
        stat = epath.Path(name).stat()
    except OSError as error:
        raise UsageError(f"The file '{name}' cannot be read: {error.strerror or error}.") from error
    return f"{stat.length} {stat.mtime}"


def open_binary(name: str) -> Any:
    """The file's bytes as a stream, unpacked where its name ends in .gz, .bz2, .xz or .zst.

    Raises:
      UsageError: it cannot be opened.
    """
    try:
        return fsspec.open(name, "rb", compression="infer").open()
    except (OSError, ValueError, ImportError) as error:
        raise UsageError(f"The file '{name}' cannot be read: {error}.") from error


def open_text_lines(name: str) -> Any:
    """The file's lines as bytes, without their ends."""
    stream = open_binary(name)
    return (line.rstrip(b"\r\n") for line in io.BufferedReader(stream))


def _listed(name: str, what: str) -> list[str]:
    if not name.startswith("@"):
        return _apart(name)
    try:
        lines = epath.Path(name[1:]).read_text().splitlines()
    except OSError as error:
        raise UsageError(f"The list '{name[1:]}' of {what} cannot be read: {error.strerror or error}.") from error
    names = [line.partition("#")[0].strip() for line in lines]
    return [line for line in names if line]


def _apart(names: str) -> list[str]:
    """Names between commas outside of braces."""
    return [part.strip() for part in re.split(r",(?![^{]*\})", names) if part.strip()]


def _matches(pattern: str, what: str) -> list[str]:
    if "://" in pattern:
        files = fsspec.open_files(pattern, "rb")
        found = [file.full_name for file in files] if glob.has_magic(pattern) else [pattern]
    else:
        found = sorted(glob.glob(pattern, recursive=True)) if glob.has_magic(pattern) else [pattern]
    if not found:
        raise UsageError(f"'{pattern}' matches no file of {what}.")
    for name in found:
        if not version(name) or epath.Path(name).is_dir():
            raise UsageError(f"'{name}' is a folder, but files of {what} are read: say '{name}/*'.")
    return found
