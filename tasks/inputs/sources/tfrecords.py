"""TFRecord files of tf.train.Example."""

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from layers.errors import UsageError
from tasks.inputs.files import files
from tasks.inputs.files.unpacking import PACKED
from tasks.inputs.sources.documents import Document, Skipped
from tasks.inputs.sources.file_source import FileSource, Names
from tasks.inputs.sources.values import NO_DOCUMENT, as_document, no_column
from tasks.quiet_imports import tensorflow

FRAME = 16  # bytes around each record: its length and two checksums
BLOCK = 1 << 24  # bytes that are unpacked at once


@dataclasses.dataclass(frozen=True, kw_only=True)
class TfExamples(FileSource):
    """One feature of each tf.train.Example is the document: bytes are text, a list of int64 token ids.

    A record that is cut off or fails its checksum is an error of the whole file: what follows it cannot be found, and
    training on the part of a file that a broken copy left over would go unnoticed.
    """

    files: Names  # names, patterns, braces, or @file with one name a line; packed ones too
    column: str = "text"  # the feature that is read
    validation_files: Names | None = None  # files that validate; None, and no test files: documents go by their hash
    test_files: Names | None = None  # files that test

    @property
    def kind(self) -> str:
        return f"TFRecord files (feature '{self.column}')"

    def named(self) -> dict[str, Names | None]:
        return {"train": self.files, "validation": self.validation_files, "test": self.test_files}

    def read_file(self, name: str) -> Iterator[Document]:
        try:
            tf = tensorflow()
        except ImportError as error:
            raise UsageError(f"'{name}' is read by TensorFlow: pip install 'vortaro[tfds]'.") from error
        with _readable(name) as path:
            yield from self._examples(tf, path, name)

    def _examples(self, tf: Any, path: str, name: str) -> Iterator[Document]:
        """The documents of a file that TensorFlow can read; `name` is what messages call it."""
        count, read, size = 0, 0, files.size(path)
        try:
            packing = "GZIP" if path.endswith(".gz") else None
            records: Any = tf.data.TFRecordDataset(path, packing).as_numpy_iterator()
            for record in records:
                yield self._document(_example(tf, record, count, name), name, count > 0)
                count, read = count + 1, read + FRAME + len(record)
            if read != size:  # TensorFlow takes a file that ends inside a record's header for a whole one
                raise tf.errors.DataLossError(None, None, "")
        except (tf.errors.OpError, OSError) as error:
            raise UsageError(
                f"The file '{name}' is cut off or damaged behind its record {count:,}: copy or write it again."
            ) from error
        if not count:
            raise UsageError(f"The file '{name}' is empty.")

    def _document(self, example: Any, name: str, go_on: bool) -> Document:
        """The document in an example; without `go_on`, one that lacks the feature is an error."""
        features = example.features.feature
        if self.column not in features:
            if go_on:
                return Skipped("no such column")
            raise no_column(self.column, sorted(features), f"The first example in '{name}'")
        feature = features[self.column]
        if feature.WhichOneof("kind") == "int64_list":
            return as_document(np.asarray(feature.int64_list.value, np.int64))
        values = list(feature.bytes_list.value)
        if len(values) > 1:
            return NO_DOCUMENT
        return as_document(values[0] if values else None)


@contextlib.contextmanager
def _readable(name: str) -> Iterator[str]:
    """A name that TensorFlow can read: the file's, or for as long as the block lasts that of an unpacked copy here.

    TensorFlow unpacks gzip alone, and knows the servers that it was built for.
    """
    if "://" not in name and not name.endswith(tuple(ending for ending in PACKED if ending != ".gz")):
        yield name
        return
    with contextlib.ExitStack() as temporary:
        with _to_temporary(name):
            copy = temporary.enter_context(tempfile.NamedTemporaryFile(prefix="vortaro-", suffix=".tfrecord"))
        with files.reading(name) as stream:
            while block := stream.read(BLOCK):
                with _to_temporary(name):
                    copy.write(block)
                    copy.flush()
        yield copy.name


@contextlib.contextmanager
def _to_temporary(name: str) -> Iterator[None]:
    """Errors of writing a copy, as one sentence."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"'{name}' is copied into '{tempfile.gettempdir()}' to be read, which fails ({error.strerror}): set "
            f"TMPDIR to a folder with room for it."
        ) from error


def _example(tf: Any, record: bytes, number: int, name: str) -> Any:
    try:
        return tf.train.Example.FromString(record)
    except Exception as error:  # protobuf's DecodeError, whose place depends on its version
        raise UsageError(f"The record {number + 1:,} of '{name}' is no tf.train.Example.") from error
