"""Titles of runs on pages, and the names of their files."""

import hashlib
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tasks.storage.files import Place

DIGITS = 8  # of the digest in the name of a file
LONGEST = 100  # characters of a title that is the name of a file
MARK = "~"  # before the digest; in no title that is the name of a file as it is


def full_name(folder: Place) -> str:
    """Returns the absolute name of a folder, the same for each of its relative names."""
    return os.path.abspath(folder) if isinstance(folder, Path) else os.fspath(folder).rstrip("/")


def titles(names: Sequence[str]) -> dict[str, str]:
    """Returns the title of each folder: its path below the deepest folder that contains all of them.

    Args:
      names: absolute names of folders, all different. A single one has the name of its last part.
    """
    parts = {name: name.split("/") for name in names}
    levels = zip(*(each[:-1] for each in parts.values()), strict=False)
    common = sum(1 for _ in itertools.takewhile(lambda level: len(set(level)) == 1, levels))
    return {name: "/".join(each[common:]) for name, each in parts.items()}


def file_names(shown: Iterable[str]) -> Mapping[str, str]:
    """Returns the name of the files, without suffix, of each title.

    Names differ in more than the case of letters, which some file systems ignore. Those of titles with other characters
    than letters, digits, `_`, `.`, `=` and `-` end in a digest of the title, so they do not depend on other titles.
    """
    found = list(shown)
    lower = Counter(_file_name(title).lower() for title in found)
    return {title: _file_name(title, is_marked=lower[_file_name(title).lower()] > 1) for title in found}


def _file_name(title: str, *, is_marked: bool = False) -> str:
    plain = re.sub(r"[^\w.=-]", "_", title, flags=re.ASCII)[-LONGEST:]
    if plain == title and not is_marked:
        return plain
    return f"{plain}{MARK}{hashlib.sha256(title.encode(errors='surrogateescape')).hexdigest()[:DIGITS]}"
