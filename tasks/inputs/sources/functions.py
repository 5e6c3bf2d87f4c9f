"""Documents that a function of the user's makes."""

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
    """What `documents(split)` yields: str, 1-D integer arrays of token ids, or Skipped. One part a split.

    What is kept of it is made anew when the text of the function's file changes; say by `version` when something else
    does that it reads. What the function raises goes through as it is.
    """

    function: str  # "module:name"; the module is found like any that is imported
    has_splits: bool = False  # whether it is called with "train", "validation" and "test"; otherwise with None, once
    version: str = ""  # of what the function reads: change it, and the documents are made anew

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
            raise UsageError(f"'{self.function}' names no function: write module:name, like my_data:documents.")
        try:
            imported = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise  # it is there, and what it imports is not
            raise UsageError(f"There is no module '{module}' for the documents of '{self.function}'.") from error
        function = getattr(imported, name, None)
        if not callable(function):
            there = [key for key, value in vars(imported).items() if callable(value)]
            raise UsageError(f"The module '{module}' has no function '{name}'. {did_you_mean(name, there)}")
        return function

    def _documents(self, split: str | None) -> Iterator[Document]:
        found = self._find()(split)
        if isinstance(found, str) or not hasattr(found, "__iter__"):
            raise UsageError(f"{self.function} returns {type(found).__name__}, and should yield documents.")
        for number, value in enumerate(found):
            if not isinstance(value, str | list | np.ndarray | Skipped):
                raise UsageError(
                    f"{self.function} yields {type(value).__name__} as document {number}: text or 1-D arrays of token "
                    f"ids are read."
                )
            yield value if isinstance(value, Skipped) else as_document(value)
