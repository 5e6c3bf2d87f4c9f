"""Folders and files, local or on an object store (gs://, s3://).

A place is a `pathlib.Path` if local and an `epath.Path` on a store. Both read and write complete files alike; the
functions of this module emulate what a store does not support (folders, rename).
"""

import contextlib
import functools
import importlib.util
import logging
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from traceback import walk_tb
from typing import Any

import fsspec
import fsspec.config
from etils import epath

from layers.errors import UsageError, VortaroError, did_you_mean, first_line, missing_package

Place = Path | epath.Path
PACKAGES = {"gs": ("gcsfs", "gcs"), "s3": ("s3fs", "s3")}  # scheme: package, and the extra that installs it

TEMPORARY = (".writing-", "building-", "copying-", "removing-")  # prefixes of names of temporary files and folders
ABANDONED_SECONDS = 24 * 3600

CLIENTS = {"aiobotocore", "aiohttp", "botocore", "gcsfs", "google", "s3fs"}  # packages of stores, as in tracebacks

if any(importlib.util.find_spec(package) for package, _ in PACKAGES.values()):
    # If TensorFlow is installed, epath would use it for stores by default, and it does not support s3://.
    os.environ.setdefault("EPATH_USE_TF", "false")
for _scheme in ("gcs", "s3"):
    # A cached listing would miss files that other processes, or tensorstore in this one, write.
    fsspec.config.conf.setdefault(_scheme, {}).setdefault("use_listings_cache", False)


def is_remote(name: str | os.PathLike) -> bool:
    """Returns whether a name is that of a place on an object store."""
    return "://" in os.fspath(name)


def place(name: str | os.PathLike) -> Place:
    """Returns the folder or file of a name; it need not exist.

    Raises:
      UsageError: the store is unknown, its package is missing, or it denies access.
    """
    if not is_remote(name):
        return Path(name)
    scheme = os.fspath(name).partition("://")[0]
    if scheme not in PACKAGES:
        hint = did_you_mean(scheme, PACKAGES)
        raise UsageError(f"The store of '{name}' is unknown. Folders are local, gs:// or s3://. {hint}")
    _let_in(os.fspath(name))
    return epath.Path(name)


def require_package(name: str | os.PathLike) -> None:
    """Raises a UsageError if the package of a name's store is missing."""
    package, extra = PACKAGES.get(os.fspath(name).partition("://")[0], ("", ""))
    if package and importlib.util.find_spec(package) is None:
        raise missing_package(f"'{name}'", package, extra)


def file_system(name: str | os.PathLike) -> tuple[Any, str]:
    """Returns the fsspec file system of a place on a store, and the path of the place in it."""
    require_package(name)
    return fsspec.core.url_to_fs(os.fspath(name))


@contextlib.contextmanager
def reached(name: str | os.PathLike, what: str = "reached", *, kind: str = "") -> Iterator[None]:
    """Turns any error of a store in its block into a UsageError of one sentence.

    Args:
      name: the place.
      what: what the block does with it, for the message.
      kind: kind of the place, for the message ("The token cache").
    """
    try:
        yield
    except VortaroError:
        raise
    except Exception as error:
        raise UsageError(f"{kind} '{name}' cannot be {what}: {first_line(error)}.".lstrip()) from error


@contextlib.contextmanager
def trouble(workdir: str | None) -> Iterator[None]:
    """Turns an error of an object store in its block, after access was granted, into a VortaroError of one sentence."""
    try:
        yield
    except VortaroError:
        raise
    except Exception as error:
        modules = {frame.f_globals.get("__name__", "").partition(".")[0] for frame, _ in walk_tb(error.__traceback__)}
        if not modules & CLIENTS and not re.search(r"\b(gs|s3)://", str(error)):
            raise
        where = f" while '{workdir}' was in use" if workdir is not None and is_remote(workdir) else ""
        raise VortaroError(
            f"An object store failed{where}: {first_line(error)}. Run the same command again to resume."
        ) from error


@functools.cache
def _let_in(name: str) -> None:
    """Lists the folder once, so that errors of credentials, permissions and network occur here."""
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # its errors are reported in one sentence
    with reached(name), contextlib.suppress(FileNotFoundError):
        system, path = file_system(name)
        system.ls(path, detail=False)


def cache_folder() -> Path:
    """Returns the cache folder (XDG_CACHE_HOME), or a temporary folder if that one is not writable; creates it."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    try:
        folder = Path(home) / "vortaro"
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    folder = Path(tempfile.gettempdir()) / f"vortaro-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def absolute(folder: Place) -> Place:
    """Returns the absolute path of the folder."""
    return folder.absolute() if isinstance(folder, Path) else folder


def make_folder(folder: Place) -> None:
    """Makes a folder and its parents. Does nothing on a store, which has no folders.

    Raises:
      OSError: the folder cannot be made.
    """
    if isinstance(folder, Path):  # on a store s3fs would create a bucket for a mistyped name
        folder.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """Yields a path to write a local file to, which is renamed to `target` after the block, or removed after an error.

    The temporary file is in the folder of `target`, which must exist. Its name is unique, so that several threads and
    processes can write the same file: the last one replaces the others.
    """
    part = target.with_name(f"{TEMPORARY[0]}{uuid.uuid4().hex}")
    try:
        yield part
        os.replace(part, target)
    except BaseException:  # a full disk, Ctrl-C
        part.unlink(missing_ok=True)
        raise


def write_whole(file: Place, content: str | bytes) -> None:
    """Writes a file atomically: a reader finds the old or the new content, never a part.

    A local file is written under another name and renamed (`whole_file`); an object appears when its upload is
    complete.
    """
    data = content.encode() if isinstance(content, str) else content
    if not isinstance(file, Path):
        with reached(file, "written"):
            try:
                file.write_bytes(data)
            except FileNotFoundError as error:
                raise no_bucket(file) from error
        return
    with whole_file(file) as part:
        part.write_bytes(data)


def sweep_abandoned(folder: Path) -> None:
    """Removes temporary files and folders of killed processes that have not changed for ABANDONED_SECONDS."""
    for left in folder.iterdir():
        if left.name.startswith(TEMPORARY):
            with contextlib.suppress(OSError):
                content = left.iterdir() if left.is_dir() else ()
                if time.time() - max(file.stat().st_mtime for file in (left, *content)) > ABANDONED_SECONDS:
                    shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink()


def no_bucket(name: Place) -> UsageError:
    """Returns the error for a place whose bucket does not exist."""
    return UsageError(f"'{name}' cannot be written: bucket '{os.fspath(name).split('/')[2]}' does not exist.")


def move_folder(source: Place, target: Place) -> None:
    """Moves a folder and replaces an existing target; objects are copied and removed one by one."""
    if isinstance(source, Path):
        shutil.rmtree(target, ignore_errors=True)
        shutil.move(source, target)
        return
    system, path = file_system(source)
    for name in system.find(path):
        system.copy(name, f"{file_system(target)[1]}{name.removeprefix(path)}")
    system.rm(path, recursive=True)
