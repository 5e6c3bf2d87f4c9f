"""Documents from a function of the user."""

import dataclasses
import functools
import hashlib
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from layers.errors import UsageError, did_you_mean
from tasks.inputs.sources.documents import Document, DocumentSource, Part, Skipped
from tasks.inputs.sources.splits import check_request
from tasks.inputs.sources.values import as_document


@dataclasses.dataclass(frozen=True, kw_only=True)
class FromFunction(DocumentSource):
    """Documents that `function(split)` yields: str, 1-D integer arrays of token ids, or Skipped. One part per split.

    Cached documents are rebuilt when the source file of the function changes; change `version` when its data change.
    Exceptions of the function are not converted.
    """

    function: str  # "module:name"; the module must be importable
    has_splits: bool = False  # whether the argument is "train", "validation" or "test"; otherwise it is None
    version: str = ""  # of the data that the function reads; a change rebuilds the documents

    def describe(self) -> str:
        return f"documents of {self.function}"

    def parts(self, split: str | None) -> list[Part]:
        check_request(split, self.has_splits, self.function)
        self._find()
        file = sys.modules[self.function.partition(":")[0]].__file__
        digest = hashlib.sha256(Path(file).read_bytes() if file else b"").hexdigest()[:16]
        name = self.function if split is None else f"{self.function} {split}"
        return [Part(name, f"{digest} {self.version}", functools.partial(self._documents, split))]

    def _find(self) -> Callable[[str | None], Any]:
        module, colon, name = self.function.partition(":")
        if not colon or not module or not name:
            raise UsageError(
                f"'{self.function}' does not name a function. Write module:name, for example my_data:documents."
            )
        if module.partition(".")[0] in sys.stdlib_module_names:  # the record of a run may name it: no os:system
            raise UsageError(f"'{self.function}' is of Python's library. Write a function that yields documents.")
        try:
            imported = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise  # the module exists, but one of its imports does not
            raise UsageError(f"The module '{module}' of the function '{self.function}' cannot be found.") from error
        function = getattr(imported, name, None)
        if not callable(function):
            there = [key for key, value in vars(imported).items() if callable(value)]
            raise UsageError(f"The module '{module}' has no function '{name}'. {did_you_mean(name, there)}")
        return function

    def _documents(self, split: str | None) -> Iterator[Document]:
        found = self._find()(split)
        if isinstance(found, str) or not hasattr(found, "__iter__"):
            raise UsageError(f"{self.function} must yield documents (got {type(found).__name__}).")
        for number, value in enumerate(found):
            if not isinstance(value, str | list | np.ndarray | Skipped):
                raise UsageError(
                    f"{self.function} must yield text or 1-D arrays of token ids (got {type(value).__name__} as "
                    f"document {number})."
                )
            yield value if isinstance(value, Skipped) else as_document(value)
