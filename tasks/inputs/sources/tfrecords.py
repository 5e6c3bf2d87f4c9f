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
BLOCK = 1 << 24  # bytes decompressed at a time


@dataclasses.dataclass(frozen=True, kw_only=True)
class TfExamples(FileSource):
    """One feature of each tf.train.Example is the document: bytes are text, int64 lists are token ids.

    A record that is cut off or fails its checksum is an error of the complete file, because the records after it cannot
    be found, and training on the remains of a broken copy would go unnoticed.
    """

    files: Names  # names, patterns, braces, or @file with one name per line; may be compressed
    column: str = "text"  # the feature to read
    validation_files: Names | None = (
        None  # validation files; without these and test files, documents are divided by hash
    )
    test_files: Names | None = None  # test files

    @property
    def kind(self) -> str:
        return f"TFRecord files (feature '{self.column}')"

    def named(self) -> dict[str, Names | None]:
        return {"train": self.files, "validation": self.validation_files, "test": self.test_files}

    def read_file(self, name: str) -> Iterator[Document]:
        try:
            tf = tensorflow()
        except ImportError as error:
            raise UsageError(f"'{name}' needs the package tensorflow. Run pip install 'vortaro[tfds]'.") from error
        with _readable(name) as path:
            yield from self._examples(tf, path, name)

    def _examples(self, tf: Any, path: str, name: str) -> Iterator[Document]:
        """Yields the documents of a file that TensorFlow can read; messages refer to it as `name`."""
        count, read, size = 0, 0, files.size(path)
        try:
            packing = "GZIP" if path.endswith(".gz") else None
            records: Any = tf.data.TFRecordDataset(path, packing).as_numpy_iterator()
            for record in records:
                yield self._document(_example(tf, record, count, name), name, count > 0)
                count, read = count + 1, read + FRAME + len(record)
            if read != size:  # TensorFlow reports no error if the file ends inside a record's header
                raise tf.errors.DataLossError(None, None, "")
        except (tf.errors.OpError, OSError) as error:
            raise UsageError(
                f"The file '{name}' is cut off or damaged after record {count:,}. Copy or write it again."
            ) from error
        if not count:
            raise UsageError(f"The file '{name}' is empty.")

    def _document(self, example: Any, name: str, go_on: bool) -> Document:
        """Returns the document in an example; without the feature it is skipped, or an error unless `go_on` is set."""
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
    """Yields a name that TensorFlow can read: the file's, or that of a decompressed local copy, removed at the end.

    TensorFlow decompresses gzip only, and supports the remote file systems that it was built for.
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
    """Turns errors of writing the temporary copy into a UsageError."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"'{name}' cannot be copied into '{tempfile.gettempdir()}' ({error.strerror}). Set TMPDIR to a folder with "
            f"enough space for it."
        ) from error


def _example(tf: Any, record: bytes, number: int, name: str) -> Any:
    try:
        return tf.train.Example.FromString(record)
    except Exception as error:  # protobuf's DecodeError, whose module depends on the version
        raise UsageError(f"Record {number + 1:,} of '{name}' is not a tf.train.Example.") from error
