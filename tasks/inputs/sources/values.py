"""Conversion of the values in files and columns to documents."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from layers.errors import UsageError, did_you_mean
from tasks.inputs.sources.documents import Document, Skipped
from tasks.storage.json_values import parsed

EMPTY = Skipped("empty")
INVALID_UTF8 = Skipped("invalid UTF-8")
NULL = Skipped("null")
NO_DOCUMENT = Skipped("neither text nor a row of token ids")
BROKEN_JSON = Skipped("broken JSON")
NO_OBJECT = Skipped("JSON that is not an object")


def as_document(value: Any) -> Document:
    """Converts str or UTF-8 bytes to text, a list or 1-D array of integers to token ids, other values to Skipped."""
    if value is None:
        return NULL
    if isinstance(value, bytes):
        return _text(value)
    if isinstance(value, str):
        # JSON can contain half of a surrogate pair, which tokenizers reject.
        return value if value and (value.isascii() or _encodes(value)) else (INVALID_UTF8 if value else EMPTY)
    if isinstance(value, list | np.ndarray):
        return _ids(value)
    return NO_DOCUMENT


def json_object(line: bytes) -> Mapping[str, Any] | Skipped:
    """Returns the JSON object in a line or file, or the reason to skip it."""
    if not line.strip():
        return EMPTY
    try:
        value = parsed(line.decode())
    except UnicodeDecodeError:
        return INVALID_UTF8
    except ValueError:
        return BROKEN_JSON
    return value if isinstance(value, dict) else NO_OBJECT


def no_column(column: str, there: Iterable[str], where: str) -> UsageError:
    """Returns the error for a missing column."""
    there = list(there)
    names = ", ".join(repr(name) for name in there) or "none"
    return UsageError(f"{where} has no column '{column}', only {names}. {did_you_mean(column, there)}")


def _text(value: bytes) -> Document:
    try:
        return value.decode() or EMPTY
    except UnicodeDecodeError:
        return INVALID_UTF8


def _encodes(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _ids(value: list | np.ndarray) -> Document:
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):
        return NO_DOCUMENT
    if array.size == 0:
        return EMPTY
    return array if array.ndim == 1 and array.dtype.kind in "iu" else NO_DOCUMENT
