"""Records of many experiments: made by several processes, and cached by the content that determines them."""

import contextlib
import functools
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

from layers.errors import VortaroError
from layers.roots import is_ours
from registry.experiment import Experiment, cls_key
from registry.records.provenance import PACKAGES, digest, short_digest, versions
from registry.resolve import resolve
from registry.site.records import Record, record
from registry.user_code import clear_errors
from registry.values import show
from tasks.inputs.byte_text import cache_folder
from tasks.storage.files import write_whole

CACHED_SECONDS = 30 * 24 * 3600  # after the last use, a cached record is removed
PER_PROCESS = 12  # records below which a further process costs more (its imports: 2 s) than it saves

Tracked = Callable[[Sequence[str]], Iterable[str]]  # shows progress over names


def records(names: Sequence[str], imports: Sequence[str] = (), tracked: Tracked = iter) -> list[Record]:
    """Returns the records of experiments, in this order; those that cannot be built have the key "error".

    Records of builds without errors are read from and written to the user's cache folder.

    Raises:
      VortaroError: a process ended, as when memory is exhausted.
    """
    found: dict[str, Record] = {}
    files: dict[str, Path] = {}
    folder = cache_folder() / "site"
    folder.mkdir(exist_ok=True)
    for name in names:
        try:
            with clear_errors(f"{name} cannot be built"):
                files[name] = folder / f"{_key(resolve(name, imports=imports))}.json"
        except VortaroError as error:
            found[name] = {"name": name, "error": str(error)}
        else:
            with contextlib.suppress(FileNotFoundError, ValueError):  # a damaged file is replaced
                found[name] = json.loads(files[name].read_text())
                os.utime(files[name])
    missing = [name for name in names if name not in found]
    for name, made in zip(tracked(missing), _make(missing, tuple(imports)), strict=True):
        found[name] = made
        if "error" not in made:
            write_whole(files[name], json.dumps(made))
    _remove_unused(folder)
    return [found[name] for name in names]


def _make(names: Sequence[str], imports: tuple[str, ...]) -> Iterable[Record]:
    """Yields the records of these experiments, from as many processes as processors if there are many of them."""
    processes = min(len(os.sched_getaffinity(0)), -(-len(names) // PER_PROCESS))
    make = functools.partial(record, imports=imports)
    if processes < 2:
        yield from map(make, names)
        return
    try:
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            yield from pool.map(make, names, chunksize=2)
    except BrokenProcessPool as error:
        raise VortaroError("A process that builds experiments ended. Run the same command again to resume.") from error


def _key(experiment: Experiment) -> str:
    """Returns a digest of what determines the record: code, versions, knobs."""
    cls = type(experiment)
    is_own = is_ours(cls.__module__)
    knobs = {name: show(value) for name, value in cls.knobs().items()}
    parts = [cls_key(cls), cls.__doc__, knobs, _code("" if is_own else cls.__module__), "" if is_own else os.getcwd()]
    return short_digest(json.dumps(parts).encode())


@functools.cache  # the code of a process does not change after its start
def _code(module: str) -> str:
    """Returns a digest of Vortaro's code, of the versions of its packages, and of a user's module if given."""
    installed = {name: version for name, version in versions().items() if name in ("python", *PACKAGES)}
    return f"{digest((module,) if module else ())} {json.dumps(installed)}"


def _remove_unused(folder: Path) -> None:
    oldest = time.time() - CACHED_SECONDS
    for file in folder.glob("*.json"):
        try:
            if file.stat().st_mtime < oldest:
                file.unlink()
        except FileNotFoundError:
            continue  # another process removed it
