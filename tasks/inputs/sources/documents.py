"""What a source of documents is: parts that are read one by one, and what may be wrong with a document."""

import abc
import dataclasses
from collections.abc import Callable, Iterator

import numpy as np


@dataclasses.dataclass(frozen=True)
class Skipped:
    """Stands where a document cannot be used; the rest of the part goes on."""

    reason: str  # a few words that can be counted: "invalid UTF-8"


Document = str | np.ndarray | Skipped  # text, or token ids that somebody else made


@dataclasses.dataclass(frozen=True)
class Part:
    """Documents that are read in one go: a file, a shard, a range of rows."""

    name: str  # for a person; no two parts of a source share it
    version: str  # changes when the content does
    read: Callable[[], Iterator[Document]]  # documents in order; a UsageError where the part itself is unreadable


class DocumentSource(abc.ABC):
    """Documents in parts. A part is the unit of tokenising: parts are done by different processes, in any order."""

    @property
    @abc.abstractmethod
    def has_splits(self) -> bool:
        """Whether the source itself says what trains, validates and tests; otherwise documents go by their hash."""

    @property
    def is_running_text(self) -> bool:
        """Whether what is called documents are mere stretches of one text, without an end behind each."""
        return False

    @abc.abstractmethod
    def parts(self, split: str | None) -> list[Part]:
        """The parts of a split ("train", "validation", "test"); of everything (None) where the source has no splits.

        Raises:
          UsageError: there is no such source or split, or nothing in it.
        """

    @abc.abstractmethod
    def describe(self) -> str:
        """What is read, for a person: "JSON lines 'logs/*.jsonl'"."""
