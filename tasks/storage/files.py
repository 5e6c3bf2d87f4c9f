"""Folders and files here, or on an object store (gs://, s3://).

A place is a `pathlib.Path` here and an `epath.Path` there. Both read and write whole files alike; what a store cannot
do (append, rename, map into memory) is done by the functions of this module.
"""

import contextlib
import functools
import importlib.util
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from traceback import walk_tb
from typing import Any

import fsspec
import fsspec.config
from etils import epath

from layers.errors import UsageError, VortaroError, did_you_mean, first_line, missing_package

Place = Path | epath.Path
PACKAGES = {"gs": ("gcsfs", "gcs"), "s3": ("s3fs", "s3")}  # what reads and writes a store, and the extra it comes with

TEMPORARY = ("building-", "copying-", "removing-", "unpacking-")  # starts of the names of temporary folders
ABANDONED_SECONDS = 24 * 3600

CLIENTS = {"aiobotocore", "aiohttp", "botocore", "gcsfs", "google", "s3fs"}  # whose frames an error of a store has

if any(importlib.util.find_spec(package) for package, _ in PACKAGES.values()):
    # Or epath would leave a store to TensorFlow where that is installed, which has no s3://.
    os.environ.setdefault("EPATH_USE_TF", "false")
for _scheme in ("gcs", "s3"):
    # Other processes, and tensorstore in this one, write what a kept listing would not show.
    fsspec.config.conf.setdefault(_scheme, {}).setdefault("use_listings_cache", False)


def is_remote(name: str | os.PathLike) -> bool:
    """Whether a name is that of a place on a server."""
    return "://" in os.fspath(name)


def place(name: str | os.PathLike) -> Place:
    """The folder or file of a name, which need not be there yet.

    Raises:
      UsageError: its store is none of those known, its package is missing, or it does not let us in.
    """
    if not is_remote(name):
        return Path(name)
    scheme = os.fspath(name).partition("://")[0]
    if scheme not in PACKAGES:
        hint = did_you_mean(scheme, PACKAGES)
        raise UsageError(f"'{name}' is on no known store: folders are local, gs:// or s3://. {hint}")
    _let_in(os.fspath(name))
    return epath.Path(name)


def require_package(name: str | os.PathLike) -> None:
    """Raises a UsageError where the package that reads a name's store is missing."""
    package, extra = PACKAGES.get(os.fspath(name).partition("://")[0], ("", ""))
    if package and importlib.util.find_spec(package) is None:
        raise missing_package(f"'{name}'", package, extra)


def file_system(name: str | os.PathLike) -> tuple[Any, str]:
    """fsspec's file system of a place on a store, and the place's name there."""
    require_package(name)
    return fsspec.core.url_to_fs(os.fspath(name))


@contextlib.contextmanager
def reached(name: str | os.PathLike, what: str = "reached") -> Iterator[None]:
    """Inside, what fails at a store becomes one sentence; packages for stores raise errors of their own."""
    try:
        yield
    except VortaroError:
        raise
    except Exception as error:
        raise UsageError(f"'{name}' cannot be {what}: {first_line(error)}.") from error


@contextlib.contextmanager
def trouble(workdir: str | None) -> Iterator[None]:
    """Inside, an error that comes from an object store, after it had let us in, becomes one sentence."""
    try:
        yield
    except VortaroError:
        raise
    except Exception as error:
        modules = {frame.f_globals.get("__name__", "").partition(".")[0] for frame, _ in walk_tb(error.__traceback__)}
        if not modules & CLIENTS and not re.search(r"\b(gs|s3)://", str(error)):
            raise
        where = f" while '{workdir}' was in use" if workdir is not None and is_remote(workdir) else ""
        raise VortaroError(f"An object store failed{where}: {first_line(error)}. The same command goes on.") from error


@functools.cache
def _let_in(name: str) -> None:
    """Asks the store once what is in a folder: errors of credentials, permission and network come here."""
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # its errors are told in one sentence
    with reached(name), contextlib.suppress(FileNotFoundError):
        system, path = file_system(name)
        system.ls(path, detail=False)


def absolute(folder: Place) -> Place:
    """The folder's name from the root on."""
    return folder.absolute() if isinstance(folder, Path) else folder


def make_folder(folder: Place) -> None:
    """Makes a folder and those above it. A store has none: names of objects have slashes, that is all.

    Raises:
      OSError: it cannot be made.
    """
    if isinstance(folder, Path):  # elsewhere s3fs would make a bucket of a mistyped name
        folder.mkdir(parents=True, exist_ok=True)


def write_whole(file: Place, content: str | bytes) -> None:
    """Writes a file so that a reader finds the old one or the new one, never a part.

    An object is there when all of it has arrived; a local file is renamed.
    """
    data = content.encode() if isinstance(content, str) else content
    if not isinstance(file, Path):
        with reached(file, "written"):
            try:
                file.write_bytes(data)
            except FileNotFoundError as error:
                raise no_bucket(file) from error
        return
    part = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        part.write_bytes(data)
        os.replace(part, file)
    except BaseException:  # a full disk, Ctrl-C
        part.unlink(missing_ok=True)
        raise


def sweep_abandoned(folder: Path) -> None:
    """Removes temporary folders in which processes were killed at work, once nothing in them changed for a day."""
    for left in folder.iterdir():
        if left.name.startswith(TEMPORARY):
            with contextlib.suppress(OSError):
                if time.time() - max(file.stat().st_mtime for file in [left, *left.iterdir()]) > ABANDONED_SECONDS:
                    shutil.rmtree(left, ignore_errors=True)


def no_bucket(name: Place) -> UsageError:
    """What to say of a place that cannot be written to because its bucket is not there."""
    return UsageError(f"'{name}' cannot be written: there is no bucket '{os.fspath(name).split('/')[2]}'.")


def append(file: Place, text: str) -> None:
    """Adds text to a file's end; an object, which does not grow, is written anew."""
    if isinstance(file, Path):
        with file.open("a") as stream:
            stream.write(text)
        return
    before = file.read_text() if file.exists() else ""
    write_whole(file, before + text)


def move_folder(source: Place, target: Place) -> None:
    """Moves a folder to where another one may stand, which is replaced; objects are copied and removed one by one."""
    if isinstance(source, Path):
        shutil.rmtree(target, ignore_errors=True)
        shutil.move(source, target)
        return
    system, path = file_system(source)
    for name in system.find(path):
        system.copy(name, f"{file_system(target)[1]}{name.removeprefix(path)}")
    system.rm(path, recursive=True)
