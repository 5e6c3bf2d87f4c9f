"""Samples in tar files of webdataset: files whose names are equal up to the first dot are one sample.

The library groups files into samples, but tarfile reads them, because the library's reader does not detect shards that
are cut off between two files or have a damaged header.
"""

import dataclasses
import re
import tarfile
import zlib
from collections.abc import Iterator
from typing import Any

from layers.errors import UsageError, did_you_mean
from tasks.inputs.files import files, npy
from tasks.inputs.files.torch_tensors import load_row
from tasks.inputs.sources.documents import Document, Skipped
from tasks.inputs.sources.file_source import FileSource, Names
from tasks.inputs.sources.values import as_document, json_object, no_column

META = re.compile(r"__[^/]*__($|/)")  # names of files that are not samples


@dataclasses.dataclass(frozen=True, kw_only=True)
class WebDatasetShards(FileSource):
    """One file of each sample in tar shards (.tar, .tar.gz, .tgz, .tar.zst) is the document; a part is a shard.

    The extension selects the format: a torch or numpy array of token ids (.pth, .pt, .npy; torch is not needed), a JSON
    object, or text. Samples without that file are skipped; a shard without any is an error.
    """

    shards: Names  # names, patterns, `{000..017}`, or @file with one name per line; remote ones through fsspec
    member: str = "txt"  # the file name after its first dot: "txt", "json", "input_id.pth"
    column: str = "text"  # for JSON objects, the field to read
    validation_shards: Names | None = (
        None  # validation shards; without these and test shards, samples are divided by hash
    )
    test_shards: Names | None = None  # test shards

    @property
    def kind(self) -> str:
        column = f", column '{self.column}'" if self._ending == "json" else ""
        return f"webdataset shards (.{self._member}{column})"

    def named(self) -> dict[str, Names | None]:
        return {"train": self.shards, "validation": self.validation_shards, "test": self.test_shards}

    def read_file(self, name: str) -> Iterator[Document]:
        count, found, others = 0, False, set()
        with files.reading(name) as stream:
            try:
                for sample in _samples(stream, name):
                    count += 1
                    value = sample.get(self._member)
                    if value is None:
                        others |= {key for key in sample if not key.startswith("__")}
                        yield Skipped(f"no .{self._member} member")
                    else:
                        yield self._document(value, f"The .{self._member} of '{sample['__key__']}' in '{name}'", found)
                        found = True
            except (tarfile.TarError, EOFError, zlib.error) as error:
                raise UsageError(
                    f"The shard '{name}' is cut off or damaged after {count} samples ({error}). Copy or write it again."
                ) from error
        if not count:
            raise UsageError(f"The shard '{name}' has no samples.")
        if not found:
            hint = did_you_mean(self._member, others)
            raise UsageError(f"None of the {count} samples in '{name}' has a .{self._member} member. {hint}")

    @property
    def _member(self) -> str:
        return self.member.lstrip(".").lower()

    @property
    def _ending(self) -> str:
        return self._member.rpartition(".")[2]

    def _document(self, value: bytes, where: str, go_on: bool) -> Document:
        """Returns the document in a member; JSON without the column is skipped, or an error unless `go_on` is set."""
        try:
            if self._ending in ("pth", "pt"):
                return as_document(load_row(value))
            if self._ending == "npy":
                return as_document(npy.from_bytes(value))
        except ValueError as error:
            return Skipped(str(error) if self._ending != "npy" else "a damaged .npy file")
        if self._ending != "json":
            return as_document(value)
        found = json_object(value)
        if isinstance(found, Skipped):
            return found
        if self.column not in found and not go_on:
            raise no_column(self.column, found, where)
        return as_document(found[self.column]) if self.column in found else Skipped("no such column")


class _Entry(tarfile.TarInfo):
    """A tar header reader that raises an error for a broken header, where tarfile would end the archive."""

    @classmethod
    def fromtarfile(cls, archive: Any) -> Any:
        try:
            return super().fromtarfile(archive)
        except tarfile.HeaderError as error:
            if type(error).__name__ == "EOFHeaderError":
                raise
            raise tarfile.ReadError(f"{error} at byte {archive.offset:,}") from error


def _samples(stream: Any, name: str) -> Iterator[dict[str, Any]]:
    """Yields samples: {"__key__": "000017", "txt": b"...", ...}."""
    try:
        from webdataset.tariterators import group_by_keys
    except ImportError as error:
        raise UsageError(
            f"The shard '{name}' needs the package webdataset. Run pip install 'vortaro[webdataset]'."
        ) from error
    try:
        yield from group_by_keys(_members(stream, name))
    except ValueError as error:  # two files with the same name
        raise UsageError(f"The shard '{name}' is not a webdataset: {error.args[0]}.") from error


def _members(stream: Any, name: str) -> Iterator[dict[str, Any]]:
    with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Entry) as opened:
        archive: Any = opened
        for entry in archive:
            content = archive.extractfile(entry) if entry.isreg() else None
            if content is not None and not META.match(entry.name):
                yield {"fname": entry.name, "data": content.read(), "__url__": name}
            archive.members.clear()  # otherwise this list grows with the shard
