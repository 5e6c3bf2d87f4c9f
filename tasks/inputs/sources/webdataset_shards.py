"""Samples in tar files, as webdataset writes them: files that share a name up to its first dot are one sample.

The library groups files into samples; reading them is tarfile's, because the library's own reader takes a shard that is
cut off between two files, or has a damaged header, for one that ends there.
"""

import dataclasses
import io
import re
import tarfile
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from layers.errors import UsageError, did_you_mean
from tasks.inputs.files import files
from tasks.inputs.files.torch_tensors import load_row
from tasks.inputs.sources.documents import Document, Skipped
from tasks.inputs.sources.file_source import FileSource, Names
from tasks.inputs.sources.values import as_document, json_object, no_column

META = re.compile(r"__[^/]*__($|/)")  # names of what is no sample


@dataclasses.dataclass(frozen=True, kw_only=True)
class WebDatasetShards(FileSource):
    """One file of each sample of tar shards (.tar, .tar.gz, .tgz, .tar.zst) is the document; a part is a shard.

    By its ending a file is a torch or numpy array of token ids (.pth, .pt, .npy; torch is not needed), a JSON object,
    or text. Samples without that file are skipped, unless no sample of a shard has it.
    """

    shards: Names  # names, patterns, `{000..017}`, or @index with one name a line; gs:// and the like go through fsspec
    member: str = "txt"  # what follows the first dot in the file's name: "txt", "json", "input_id.pth"
    column: str = "text"  # of JSON objects, the field that is read
    validation_shards: Names | None = None  # shards that validate; None, and none to test on: samples go by their hash
    test_shards: Names | None = None  # shards that test

    @property
    def kind(self) -> str:
        column = f", column '{self.column}'" if self._ending == "json" else ""
        return f"webdataset shards (.{self._member}{column})"

    def named(self) -> dict[str, Names | None]:
        return {"train": self.shards, "validation": self.validation_shards, "test": self.test_shards}

    def read_file(self, name: str) -> Iterator[Document]:
        whole, found, others = 0, False, set()
        with files.reading(name) as stream:
            try:
                for sample in _samples(stream, name):
                    whole += 1
                    value = sample.get(self._member)
                    if value is None:
                        others |= {key for key in sample if not key.startswith("__")}
                        yield Skipped(f"no .{self._member} member")
                    else:
                        yield self._document(value, f"The .{self._member} of '{sample['__key__']}' in '{name}'", found)
                        found = True
            except (tarfile.TarError, EOFError, zlib.error) as error:
                raise UsageError(
                    f"The shard '{name}' is cut off or damaged ({error}): {whole} samples were read before."
                ) from error
        if not whole:
            raise UsageError(f"The shard '{name}' has no samples.")
        if not found:
            hint = did_you_mean(self._member, others)
            raise UsageError(f"None of the {whole} samples in '{name}' has a .{self._member} member. {hint}")

    @property
    def _member(self) -> str:
        return self.member.lstrip(".").lower()

    @property
    def _ending(self) -> str:
        return self._member.rpartition(".")[2]

    def _document(self, value: bytes, where: str, go_on: bool) -> Document:
        """The document in a member; without `go_on`, a JSON object that lacks the column is an error."""
        try:
            if self._ending in ("pth", "pt"):
                return as_document(load_row(value))
            if self._ending == "npy":
                return as_document(np.load(io.BytesIO(value), allow_pickle=False))
        except (ValueError, EOFError) as error:
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
    """A tar header. Only the mark of the end ends a shard: tarfile would take any broken header for it."""

    @classmethod
    def fromtarfile(cls, archive: Any) -> Any:
        try:
            return super().fromtarfile(archive)
        except tarfile.HeaderError as error:
            if type(error).__name__ == "EOFHeaderError":
                raise
            raise tarfile.ReadError(f"{error} at byte {archive.offset:,}") from error


def _samples(stream: Any, name: str) -> Iterator[dict[str, Any]]:
    """What belongs together: {"__key__": "000017", "txt": b"...", ...}."""
    try:
        from webdataset.tariterators import group_by_keys
    except ImportError as error:
        raise UsageError(f"The shard '{name}' is read by webdataset: pip install 'vortaro[webdataset]'.") from error
    try:
        yield from group_by_keys(_members(stream, name))
    except ValueError as error:  # two files of one name
        raise UsageError(f"The shard '{name}' is no webdataset: {error.args[0]}.") from error


def _members(stream: Any, name: str) -> Iterator[dict[str, Any]]:
    with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Entry) as opened:
        archive: Any = opened
        for entry in archive:
            content = archive.extractfile(entry) if entry.isreg() else None
            if content is not None and not META.match(entry.name):
                yield {"fname": entry.name, "data": content.read(), "__url__": name}
            archive.members.clear()  # which would grow with the shard
