"""What sources have in common whose parts are files."""

import abc
import functools
from collections.abc import Iterator, Mapping, Sequence

from layers.errors import UsageError
from tasks.inputs.sources import files
from tasks.inputs.sources.documents import Document, DocumentSource, Part
from tasks.inputs.sources.splits import check_request

Names = str | Sequence[str]  # what `files.expand` takes


def refuse_shared(named: Mapping[str, Names | None], what: str) -> None:
    """Raises a UsageError where a file is named both to train on and to validate or test on."""
    found = {split: set(files.expand(names, what)) for split, names in named.items() if names is not None}
    for split in ("validation", "test"):
        both = sorted(found.get(split, set()) & found["train"])
        if both:
            raise UsageError(f"The file '{both[0]}' is named to train on and for the {split} split.")


class FileSource(DocumentSource):
    """Documents in files, one part for each; splits where files to validate or test on are named."""

    @property
    @abc.abstractmethod
    def kind(self) -> str:
        """What the files are and what is taken from them, for a person and for the version of parts."""

    @abc.abstractmethod
    def named(self) -> dict[str, Names | None]:
        """The names of the train, validation and test files."""

    @abc.abstractmethod
    def read_file(self, name: str) -> Iterator[Document]:
        """The documents of one file."""

    @property
    def has_splits(self) -> bool:
        named = self.named()
        return named["validation"] is not None or named["test"] is not None

    def describe(self) -> str:
        return f"{self.kind} in {files.shown(self.named()['train'] or '')}"

    def files_of(self, split: str | None) -> list[str]:
        """The files of a split; of everything (None) where there are no splits.

        Raises:
          UsageError: a name stands for no file, no files are named for that split, or one of them trains as well.
        """
        check_request(split, self.has_splits, self.describe())
        named = self.named()
        names = named[split or "train"]
        if names is None:
            there = " and ".join(f"{key} files" for key, value in named.items() if value is not None)
            raise UsageError(f"There is no {split} split: {self.describe()} names {there}, and no {split} files.")
        if split is not None:
            refuse_shared(named, self.kind)
        return files.expand(names, self.kind)

    def parts(self, split: str | None) -> list[Part]:
        return [self._part(name) for name in self.files_of(split)]

    def _part(self, name: str) -> Part:
        return Part(name, f"{files.version(name)} {self.kind}", functools.partial(self.read_file, name))
