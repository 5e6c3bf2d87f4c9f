"""Base class of sources whose parts are files."""

import abc
import functools
from collections.abc import Iterator, Mapping, Sequence

from layers.errors import UsageError
from tasks.inputs.files import files
from tasks.inputs.files.files import File
from tasks.inputs.sources.documents import Document, DocumentSource, Part
from tasks.inputs.sources.splits import check_request

Names = str | Sequence[str]  # argument of `files.expand`


def refuse_shared(found: Mapping[str, Mapping[str, File]]) -> None:
    """Raises a UsageError if a training file is also a validation or test file.

    Args:
      found: for each split with files, its files by their resolved path.
    """
    for split in ("validation", "test"):
        held_out = found.get(split, {})
        both = next((place for place in held_out if place in found["train"]), None)
        if both is not None:
            name, again = found["train"][both].name, held_out[both].name
            also = "" if name == again else f" as '{again}'"
            raise UsageError(
                f"The file '{name}' is named to train on and{also} for the {split} split. Remove it from one of them."
            )


class FileSource(DocumentSource):
    """Documents in files, one part per file; has splits if validation or test files are named."""

    @property
    @abc.abstractmethod
    def kind(self) -> str:
        """Kind of the files and of their documents, for messages and for the version of parts."""

    @abc.abstractmethod
    def named(self) -> dict[str, Names | None]:
        """Returns the names of the train, validation and test files."""

    @abc.abstractmethod
    def read_file(self, name: str) -> Iterator[Document]:
        """Yields the documents of one file."""

    @property
    def has_splits(self) -> bool:
        named = self.named()
        return named["validation"] is not None or named["test"] is not None

    def describe(self) -> str:
        return f"{self.kind} in {files.shown(self.named()['train'] or '')}"

    def files_of(self, split: str | None) -> list[File]:
        """Returns the files of a split, or all files (None) without splits.

        Raises:
          UsageError: a name matches no file, the split has no files, or shares one with the train split.
        """
        check_request(split, self.has_splits, self.describe())
        named = {key: names for key, names in self.named().items() if names is not None}
        wanted = split or "train"
        if wanted not in named:
            kinds = " and ".join(f"{key} files" for key in named)
            raise UsageError(f"The {split} split has no files: {self.describe()} names only {kinds}.")
        found = {key: files.find(names, self.kind) for key, names in named.items()}
        refuse_shared(found)
        return list(found[wanted].values())

    def parts(self, split: str | None) -> list[Part]:
        return [self._part(file) for file in self.files_of(split)]

    def _part(self, file: File) -> Part:
        return Part(file.name, f"{file.version} {self.kind}", functools.partial(self.read_file, file.name))
