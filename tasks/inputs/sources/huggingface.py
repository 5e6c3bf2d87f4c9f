"""Data sets of the Hugging Face `datasets` library: from the hub, its cache, or local files and folders."""

import dataclasses
import functools
import glob
import os
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from layers.errors import UsageError, did_you_mean, first_line
from tasks.inputs.files import files
from tasks.inputs.sources.documents import Document, DocumentSource, Part
from tasks.inputs.sources.splits import are_splits, check_request, official, pick
from tasks.inputs.sources.values import as_document, no_column

ROWS_PER_PART = 10_000
ROWS_PER_SLICE = 1_000  # read in one call, because one call per row would take most of the time
# Reader of the library for each file extension; the library handles a further .gz or similar extension.
READERS = {
    ".arrow": "arrow",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".parquet": "parquet",
    ".tsv": "csv",
    ".txt": "text",
}
SAVED = ("dataset_dict.json", "state.json")  # files that save_to_disk writes


@dataclasses.dataclass(frozen=True, kw_only=True)
class HuggingFace(DocumentSource):
    """One column of a data set: text, or lists of token ids. A part is a range of its rows.

    The data set's own splits are used if it has a train split and another one ("valid", "val" and "dev" are validation
    splits); otherwise all its rows are read.
    """

    dataset: str  # name on the hub; or a folder, of data files or from save_to_disk; or files by name or pattern
    config: str | None = None  # the configuration of a data set that has several ("wikitext-103-raw-v1")
    column: str = "text"  # text, or lists of token ids
    revision: str | None = None  # branch, tag or commit on the hub; None is its main branch
    splits: Mapping[str, str] | None = None  # train, validation, test to the data set's names; None: the usual ones

    def describe(self) -> str:
        config = f" ({self.config})" if self.config else ""
        return f"Hugging Face data set '{self.dataset}'{config}"

    @property
    def has_splits(self) -> bool:
        return are_splits(self._official)

    def parts(self, split: str | None) -> list[Part]:
        check_request(split, self.has_splits, f"The {self.describe()}")
        if split is not None:
            names = [pick(split, self._official, self._tables, f"The {self.describe()}")]
        else:
            names = list(self._official.values()) if self.splits else list(self._tables)
        parts = [part for name in names for part in self._ranges(name)]
        if not parts:
            raise UsageError(f"The {self.describe()} has no rows to read in {' or '.join(names)}.")
        return parts

    @functools.cached_property
    def _tables(self) -> dict[str, Any]:
        """The data set's splits by their names."""
        loaded = _load(self)
        return dict(loaded) if isinstance(loaded, Mapping) else {"train": loaded}

    @functools.cached_property
    def _official(self) -> dict[str, str]:
        return official(self._tables, self.splits, f"The {self.describe()}")

    def _ranges(self, name: str) -> list[Part]:
        table = self._tables[name]
        if self.column not in table.column_names:
            raise no_column(self.column, table.column_names, f"The {self.describe()}")
        version = f"{table._fingerprint} column {self.column}"
        column = table.select_columns([self.column]).with_format("arrow")
        starts = range(0, len(table), ROWS_PER_PART)
        ranges = [(start, min(start + ROWS_PER_PART, len(table))) for start in starts]
        return [
            Part(f"{self.dataset} {name}[{start}:{stop}]", version, functools.partial(_documents, column, start, stop))
            for start, stop in ranges
        ]


def _documents(table: Any, start: int, stop: int) -> Iterator[Document]:
    """Yields rows start ... stop - 1 of a table with one column in Arrow format."""
    import pyarrow

    for first in range(start, stop, ROWS_PER_SLICE):
        for value in table[first : min(first + ROWS_PER_SLICE, stop)].column(0):
            # Keep a list's values as one array: Python numbers would be a hundred times as large.
            array = value.values if isinstance(value, pyarrow.ListScalar) else None
            yield as_document(value.as_py() if array is None else array.to_numpy(zero_copy_only=False))


def _load(source: HuggingFace) -> Any:
    try:
        import datasets
        import datasets.exceptions
    except ImportError as error:
        raise UsageError(
            f"The {source.describe()} needs the package datasets. Run pip install 'vortaro[hf]'."
        ) from error
    reader = functools.partial(_from_files if _are_files(source.dataset) else _from_name, datasets, source)
    try:
        return reader()
    except UsageError:
        raise
    except ConnectionError as error:
        raise UsageError(
            f"The {source.describe()} is not in the local cache and the hub cannot be reached ({first_line(error)}). "
            f"Download it on a machine with internet access, or name a local folder or files."
        ) from error
    except FileNotFoundError as error:
        raise UsageError(f"The {source.describe()} cannot be found: {first_line(error)}.") from error
    except (OSError, ValueError, RuntimeError, ImportError, datasets.exceptions.DatasetsError) as error:
        raise _config_error(datasets, source) or UsageError(
            f"The {source.describe()} cannot be read: {first_line(error.__cause__ or error)}."
        ) from error


def _are_files(name: str) -> bool:
    return not os.path.isdir(name) and bool(
        "://" in name or name.startswith("@") or glob.has_magic(name) or "{" in name or _reader(name)
    )


def _reader(name: str) -> str | None:
    return next((READERS[suffix] for suffix in reversed(PurePath(name).suffixes) if suffix in READERS), None)


def _from_files(datasets: Any, source: HuggingFace) -> Any:
    if source.config or source.revision:
        raise UsageError(f"'{source.dataset}' names files, which have no configuration or revision. Remove them.")
    names = files.expand(source.dataset, "a Hugging Face data set")
    readers = {_reader(name) for name in names}
    reader = readers.pop()
    if readers or reader is None:
        raise UsageError(f"The files '{source.dataset}' must all end in one of {', '.join(READERS)}.")
    options = {"sep": "\t"} if names[0].endswith((".tsv", ".tsv.gz")) else {}
    return datasets.load_dataset(reader, data_files=names, split="train", **options)


def _from_name(datasets: Any, source: HuggingFace) -> Any:
    if any(os.path.exists(os.path.join(source.dataset, name)) for name in SAVED):
        return datasets.load_from_disk(source.dataset)
    return datasets.load_dataset(source.dataset, source.config, revision=source.revision)


def _config_error(datasets: Any, source: HuggingFace) -> UsageError | None:
    """Returns the error for a missing or unknown configuration, or None if the configuration is valid."""
    try:
        there = datasets.get_dataset_config_names(source.dataset, revision=source.revision)
    except Exception:  # the caller reports the original error
        return None
    if source.config in there or (source.config is None and len(there) < 2):
        return None
    what = f"no configuration '{source.config}'" if source.config else "several configurations, and none is named"
    hint = did_you_mean(source.config or "", there)
    return UsageError(f"The Hugging Face data set '{source.dataset}' has {what}. {hint}")
