"""Interface of document sources: parts that are read one by one, and reasons to skip a document."""

import abc
import dataclasses
from collections.abc import Callable, Iterator

import numpy as np


@dataclasses.dataclass(frozen=True)
class Skipped:
    """Placeholder for a document that cannot be used; reading continues with the next one."""

    reason: str  # short, for a tally: "invalid UTF-8"


Document = str | np.ndarray | Skipped  # text, or token ids that need no tokenizing


@dataclasses.dataclass(frozen=True)
class Part:
    """Documents that are read together: a file, a shard, a range of rows."""

    name: str  # for messages; unique within a source
    version: str  # changes when the content does
    read: Callable[[], Iterator[Document]]  # yields documents in order; raises a UsageError if the part is unreadable


class DocumentSource(abc.ABC):
    """Documents in parts, the units of tokenizing: different processes handle parts in any order."""

    @property
    @abc.abstractmethod
    def has_splits(self) -> bool:
        """Whether the source has train, validation and test splits; otherwise documents are divided by their hash."""

    @property
    def is_running_text(self) -> bool:
        """Whether the documents are consecutive chunks of one text, without end tokens."""
        return False

    @abc.abstractmethod
    def parts(self, split: str | None) -> list[Part]:
        """Returns the parts of a split ("train", "validation", "test"), or of all data (None) without splits.

        Raises:
          UsageError: missing source, unknown split, or no data in it.
        """

    @abc.abstractmethod
    def describe(self) -> str:
        """Returns a description for messages: "JSON lines in 'logs/*.jsonl'"."""
