"""A kind of input: its valid examples, their mutations, and the production code that reads them."""

import dataclasses
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis.strategies import SearchStrategy

from layers.errors import VortaroError

Files = dict[str, bytes]  # relative path in a folder: content


@dataclasses.dataclass(frozen=True)
class Kind:
    """A row of `testing.fuzz.kinds.KINDS`.

    Attributes:
      name: the name on the command line.
      valid: returns what the mutations begin with; called once in a process, with an empty folder for its own use.
      mutated: returns the strategy of the inputs, from the result of `valid`.
      read: reads an input: writes its files, if it has any, into the empty folder and calls what reads them.
    """

    name: str
    valid: Callable[[Path], Any]
    mutated: Callable[[Any], SearchStrategy[Any]]
    read: Callable[[Any, Path], object]


def torch_library() -> Any:
    """Returns the module torch, which the tests of a fresh clone and its lint do not have."""
    return importlib.import_module("torch")


def write_files(files: Files, folder: Path) -> None:
    """Writes files into a folder; makes the folders that they are in."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def files_in(folder: Path) -> Files:
    """Returns the content of all files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def each(*uses: Callable[[], object]) -> None:
    """Calls several readers of one input; raises the first sentence after all of them, and any other error at once."""
    sentences = []
    for use in uses:
        try:
            use()
        except VortaroError as error:
            sentences.append(error)
    if sentences:
        raise sentences[0]
