"""Data sets prepared by TensorFlow Datasets (TFDS)."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from layers.errors import UsageError, first_line
from tasks.inputs.sources.documents import Document, DocumentSource, Part
from tasks.inputs.sources.splits import are_splits, check_request, official, pick
from tasks.inputs.sources.values import as_document, no_column
from tasks.quiet_imports import tensorflow, tensorflow_datasets


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tfds(DocumentSource):
    """One column of a TFDS data set: text, or a row of token ids. A part is one of its shards, read in order.

    The data set's own splits are used if it has a train split and another one ("valid", "val" and "dev" are validation
    splits); otherwise all its examples are read.
    """

    name: str  # its TFDS name: "pg19", "lm1b", "wikipedia/20230601.en", "c4/en:3.0.1"
    data_dir: str | None = None  # folder of prepared data sets; None is TFDS's default
    column: str = "text"  # the feature to read; "book_text" for pg19
    splits: Mapping[str, str] | None = None  # train, validation, test to the data set's names; None: the usual ones

    def describe(self) -> str:
        return f"TFDS data set '{self.name}'"

    @property
    def has_splits(self) -> bool:
        return are_splits(self._official)

    def parts(self, split: str | None) -> list[Part]:
        where = f"The {self.describe()}"
        check_request(split, self.has_splits, where)
        features = self._builder.info.features
        if self.column not in features:
            raise no_column(self.column, sorted(features), where)
        if split is not None:
            names = [pick(split, self._official, self._builder.info.splits, where)]
        else:
            names = list(self._official.values()) if self.splits else list(self._builder.info.splits)
        parts = [part for name in names for part in self._shards(name)]
        if not parts:
            raise UsageError(f"{where} has no examples in {' or '.join(names)}.")
        return parts

    @functools.cached_property
    def _builder(self) -> Any:
        return prepared(self.name, self.data_dir)

    @functools.cached_property
    def _official(self) -> dict[str, str]:
        return official(self._builder.info.splits, self.splits, f"The {self.describe()}")

    def __getstate__(self) -> dict[str, Any]:
        """Returns the fields only: each process that reads a part creates its own builder."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def _shards(self, name: str) -> list[Part]:
        info = self._builder.info
        lengths, size = info.splits[name].shard_lengths, info.splits[name].num_bytes
        version = f"{info.full_name} {name} {lengths} {size} {self._builder.data_path} column {self.column}"
        parts, start = [], 0
        for length in lengths:
            if length:
                rows = f"{info.full_name} {name}[{start}:{start + length}]"
                parts.append(Part(rows, version, functools.partial(self._documents, name, start, start + length)))
            start += length
        return parts

    def _documents(self, name: str, start: int, stop: int) -> Iterator[Document]:
        tf, tfds = tensorflow(), tensorflow_datasets()
        rows = tfds.core.ReadInstruction(name, from_=start, to=stop, unit="abs")
        one_column = tfds.decode.PartialDecoding({self.column: True})
        count = 0
        try:
            examples = self._builder.as_dataset(split=rows, shuffle_files=False, decoders=one_column)
            for example in tfds.as_numpy(examples):
                count += 1
                yield as_document(example[self.column])
        except (tf.errors.OpError, OSError) as error:
            raise UsageError(
                f"The {self.describe()} cannot be read after example {start + count} of {name} "
                f"({str(error).partition(' [')[0].partition('; ')[0][:200]}). Prepare it again."
            ) from error


def prepared(name: str, data_dir: str | None) -> Any:
    """Returns the builder of a prepared data set.

    Raises:
      UsageError: tensorflow_datasets is not installed, or the data set is not prepared in the folder.
    """
    try:
        tfds = tensorflow_datasets()
    except ImportError as error:
        raise UsageError(f"{name} needs the package tensorflow_datasets. Run pip install 'vortaro[tfds]'.") from error
    try:
        builder = tfds.builder(name, data_dir=data_dir, try_gcs=False)
    except (tfds.core.DatasetNotFoundError, OSError, ValueError, AssertionError) as error:
        raise UsageError(_how(name, data_dir, error)) from error
    if not builder.info.splits:
        raise UsageError(_how(name, data_dir, "it is not prepared there"))
    return builder


def _how(name: str, data_dir: str | None, reason: Any) -> str:
    where = "TFDS's default folder" if data_dir is None else f"'{data_dir}'"
    return (
        f"TFDS has no data set '{name}' in {where} ({first_line(reason, 120)}). Run `tfds build {name}` with "
        f"internet access, or set DATA_PATH to its folder."
    )
