"""What sources have in common whose parts are files."""

import abc
import functools
from collections.abc import Iterator, Mapping, Sequence

from layers.errors import UsageError
from tasks.inputs.files import files
from tasks.inputs.files.files import File
from tasks.inputs.sources.documents import Document, DocumentSource, Part
from tasks.inputs.sources.splits import check_request

Names = str | Sequence[str]  # what `files.expand` takes


def refuse_shared(found: Mapping[str, Mapping[str, File]]) -> None:
    """Raises a UsageError where a file is found both to train on and to validate or test on.

    Args:
      found: for each split that is named, its files by where they are.
    """
    for split in ("validation", "test"):
        held_out = found.get(split, {})
        both = next((place for place in held_out if place in found["train"]), None)
        if both is not None:
            name, again = found["train"][both].name, held_out[both].name
            also = "" if name == again else f" as '{again}'"
            raise UsageError(f"The file '{name}' is named to train on and{also} for the {split} split.")


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

    def files_of(self, split: str | None) -> list[File]:
        """The files of a split; of everything (None) where there are no splits.

        Raises:
          UsageError: a name stands for no file, no files are named for that split, or one of them trains as well.
        """
        check_request(split, self.has_splits, self.describe())
        named = {key: names for key, names in self.named().items() if names is not None}
        wanted = split or "train"
        if wanted not in named:
            there = " and ".join(f"{key} files" for key in named)
            raise UsageError(f"There is no {split} split: {self.describe()} names {there}, and no {split} files.")
        found = {key: files.find(names, self.kind) for key, names in named.items()}
        refuse_shared(found)
        return list(found[wanted].values())

    def parts(self, split: str | None) -> list[Part]:
        return [self._part(file) for file in self.files_of(split)]

    def _part(self, file: File) -> Part:
        return Part(file.name, f"{file.version} {self.kind}", functools.partial(self.read_file, file.name))
