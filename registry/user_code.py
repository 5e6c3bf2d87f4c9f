"""Errors of users' code, reported in one sentence with file and line."""

import contextlib
import functools
import importlib.util
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

from layers.errors import UsageError, VortaroError, file_line, first_line
from layers.roots import FOLDER, ROOTS, is_ours
from registry.earlier.renamed import module_advice
from registry.experiment import Experiment, cls_key

SHOWN = 3  # calls of a user's code in a message, the innermost first
ODD_SIZES = (ValueError, TypeError, ArithmeticError, IndexError)  # what Python and jax raise for mismatched sizes


@contextlib.contextmanager
def clear_errors(what_failed: str, module: str = "") -> Iterator[None]:
    """Converts exceptions to a UsageError: `what_failed`, the exception, and its positions in the user's code.

    Args:
      what_failed: the beginning of the message.
      module: name of the user's module; with it, a package installed among libraries counts as the user's code.

      Raises:
      UsageError: the code inside raises an exception or exits.
    """
    try:
        yield
    except VortaroError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(f"{what_failed}: {described(error, module)}.{module_advice(error)}") from error


def building(cls: type[Experiment]) -> contextlib.AbstractContextManager[None]:
    """Returns clear_errors() for the code that builds an experiment."""
    return clear_errors(f"{cls_key(cls)} cannot be built with these settings", cls.__module__)


@contextlib.contextmanager
def with_place(module: str) -> Iterator[None]:
    """Adds the line of the user's code to the message of a UsageError that passed through it."""
    try:
        yield
    except UsageError as error:
        place = next(iter(_places(error, module)), "")
        if not place or place.partition(" ")[0] in str(error):
            raise
        raise type(error)(f"{place}: {error}") from error


def described(error: BaseException, module: str = "") -> str:
    """Describes an exception briefly: its type, its message, and the lines of the user's code in its traceback."""
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    reason = first_line(message) if message.strip() else ""
    places = _places(error, module)
    if not places and isinstance(error, ODD_SIZES):
        return reason
    places = places or _inner_place(error)
    at = f" ({', called at '.join(places)})" if places else ""
    return f"{type(error).__name__}{': ' * bool(reason)}{reason}{at}"


def _places(error: BaseException, module: str) -> list[str]:
    """Returns the traceback positions in the user's code, innermost first."""
    root = module.partition(".")[0]
    places = []
    if isinstance(error, SyntaxError) and error.filename and not _is_library(error.filename):
        places.append(file_line(error.filename, error.lineno or 1))
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        name = frame.f_globals.get("__name__") or ""
        if is_ours(name):
            continue
        if not _is_library(frame.f_code.co_filename) or (root and name.partition(".")[0] == root):
            function = frame.f_code.co_name
            inside = "" if function == "<module>" else f" in {function}"
            places.append(file_line(frame.f_code.co_filename, line) + inside)
    return places[:SHOWN]


def _inner_place(error: BaseException) -> list[str]:
    """Returns the innermost position of all, for an error outside the user's code."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return [file_line(frames[-1][0].f_code.co_filename, frames[-1][1])] if frames else []


def is_users(module: str) -> bool:
    """Returns whether a module is a user's: not of Python, an installed library, Vortaro or a run folder.

    Imports nothing.
    """
    root = module.partition(".")[0]
    if root == "__main__":
        return True
    if not root or root in sys.stdlib_module_names or is_ours(root) or in_run_folder(module):
        return False
    try:
        spec = importlib.util.find_spec(root)
    except (ImportError, ValueError):
        return False
    places = [*(spec.submodule_search_locations or ()), spec.origin] if spec is not None else []
    return any(places) and not any(_is_library(place) for place in places if place)


def in_run_folder(module: str) -> bool:
    """Returns whether a module lies in a run folder on Python's path, whose code may come from somebody else."""
    for place in sys.path:
        folder = Path(place)
        for part in module.split("."):
            folder /= part
            if (folder / "experiment.json").is_file():
                return True
    return False


@functools.cache
def _is_library(filename: str) -> bool:
    """Returns whether a file belongs to Python, to an installed library, or to Vortaro."""
    path = Path(os.path.abspath(filename))
    if filename.startswith("<") or {"site-packages", "dist-packages"} & set(path.parts):
        return True
    libraries = [Path(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib")]
    return any(path.is_relative_to(folder) for folder in [*libraries, *(FOLDER / root for root in ROOTS)])


def package_files(file: Path, module: str) -> Iterator[Path]:
    """Yields the Python files of a module's outermost package, or of its folder if it is not in a package."""
    inside = module.count(".") + (file.name == "__init__.py")
    return file.parents[inside - 1].rglob("*.py") if inside else file.parent.glob("*.py")
