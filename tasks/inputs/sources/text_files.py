"""Text in files: each document is a line, a file, or a line of JSON."""

import dataclasses
import functools
import hashlib
from collections.abc import Iterator

from layers.errors import UsageError
from tasks.inputs.files import files
from tasks.inputs.sources.documents import Document, Part, Skipped
from tasks.inputs.sources.file_source import FileSource, Names
from tasks.inputs.sources.values import as_document, json_object, no_column

FILES_PER_PART = 256  # files of one document each in a part; a part per file would make thousands of cache entries


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Files(FileSource):
    files: Names  # names, patterns, braces, or @file with one name per line
    validation_files: Names | None = (
        None  # validation files; without these and test files, documents are divided by hash
    )
    test_files: Names | None = None  # test files

    def named(self) -> dict[str, Names | None]:
        return {"train": self.files, "validation": self.validation_files, "test": self.test_files}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextLines(_Files):
    """Every line of a file is a document, in UTF-8; a file may be compressed (.gz, .bz2, .xz, .zst)."""

    @property
    def kind(self) -> str:
        return "text lines"

    def read_file(self, name: str) -> Iterator[Document]:
        return (as_document(line) for line in files.lines(name))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextFiles(_Files):
    """Every file is a document, in UTF-8. A part is a few hundred files; empty ones (`__init__.py`) are skipped."""

    @property
    def kind(self) -> str:
        return "text files"

    def parts(self, split: str | None) -> list[Part]:
        found = self.files_of(split)
        groups = [found[i : i + FILES_PER_PART] for i in range(0, len(found), FILES_PER_PART)]
        return [self._group(group) for group in groups]

    def _group(self, group: list[files.File]) -> Part:
        versions = "\n".join(f"{file.name} {file.version}" for file in group)
        names = [file.name for file in group]
        label = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        digest = hashlib.sha256(versions.encode()).hexdigest()[:16]
        return Part(label, f"{digest} {self.kind}", functools.partial(self._read_group, names))

    def _read_group(self, names: list[str]) -> Iterator[Document]:
        for name in names:
            yield from self.read_file(name)

    def read_file(self, name: str) -> Iterator[Document]:
        yield as_document(files.whole(name))


@dataclasses.dataclass(frozen=True, kw_only=True)
class JsonLines(_Files):
    """Every line of a file is a JSON object, and one of its fields (text, or a list of token ids) is the document.

    An invalid line or one without the field is skipped. It is an error if the first object lacks the field, or if no
    line is an object, because then the field or the kind of file is wrong.
    """

    column: str = "text"  # the field to read

    @property
    def kind(self) -> str:
        return f"JSON lines (column '{self.column}')"

    def read_file(self, name: str) -> Iterator[Document]:
        seen = False
        for line in files.lines(name):
            found = json_object(line)
            if isinstance(found, Skipped):
                yield found
                continue
            if self.column not in found and not seen:
                raise no_column(self.column, found, f"The first object in '{name}'")
            seen = True
            yield as_document(found[self.column]) if self.column in found else Skipped("no such column")
        if not seen:
            raise UsageError(f"No line of '{name}' is a JSON object. JSON lines have one object per line.")
