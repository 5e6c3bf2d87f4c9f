"""JSON values in files that may be damaged: parsing with one kind of error, and the check of their types."""

import datetime
import functools
import json
import math
import types
import typing
from typing import Annotated, Any, Literal

LARGEST = 2**63 - 1  # of integers in files
Count = Annotated[int, 0]  # an integer of at least 0
NAMES = {str: "a text", bool: "true or false", int: "an integer", float: "a number", datetime.datetime: "a time"}


def parsed(text: str | bytes) -> Any:
    """Returns the JSON value of a text.

    Raises:
      ValueError: the text is not JSON, is not UTF-8, or has arrays in arrays beyond Python's limit of recursion.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("its values are nested too deeply") from error


def require_type(value: Any, hint: Any, name: str) -> None:
    """Checks the type of a JSON value and of all that it contains.

    Args:
      value: the value.
      hint: str, bool, None, Any; int (of 64 bits), float (a finite number), Annotated[int, LEAST]; datetime (a text in
        ISO format); list[X], tuple[X, Y] (an array of two), dict[str, X], Literal, unions, and TypedDicts, which may
        have further keys.
      name: the name of the value in the error.

    Raises:
      ValueError: it has another type; the message has the path of the first wrong value.
    """
    if (wrong := _misfit(value, hint, name)) is not None:
        raise ValueError(wrong)


def _misfit(value: Any, hint: Any, path: str) -> str | None:
    """Returns what does not fit, with its path; None if all fits."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        wrong = [_misfit(value, each, path) for each in arguments]
        return None if None in wrong else wrong[0]
    if origin is Annotated:
        least = arguments[1]
        return _misfit(value, arguments[0], path) or (None if value >= least else f"{path} is less than {least}")
    if typing.is_typeddict(hint) or origin is dict:
        if not isinstance(value, dict):
            return f"{path} is not an object"
        if missing := sorted(getattr(hint, "__required_keys__", frozenset()) - value.keys()):
            return f"{path} has no {missing[0]}"
        if wrong := [key for key in value if origin is dict and not _is_plain(key, arguments[0])]:
            return f"{path} has the key {wrong[0]!r}"
        fields = dict.fromkeys(value, arguments[1]) if origin is dict else _fields(hint)
        items = [(f"{path}.{key}", value[key], each) for key, each in fields.items() if key in value]
    elif origin in (list, tuple):
        if not isinstance(value, list) or (origin is tuple and len(value) != len(arguments)):
            return f"{path} is not an array{f' of {len(arguments)}' if origin is tuple else ''}"
        hints = arguments if origin is tuple else arguments * len(value)
        items = [(f"{path}[{number}]", *pair) for number, pair in enumerate(zip(value, hints, strict=True))]
    else:
        return (
            None
            if _is_plain(value, hint)
            else f"{path} is not {NAMES.get(hint) or ' or '.join(map(repr, typing.get_args(hint))) or 'null'}"
        )
    return next(filter(None, (_misfit(item, each, at) for at, item, each in items)), None)


@functools.cache
def _fields(hint: Any) -> dict[str, Any]:
    return typing.get_type_hints(hint, include_extras=True)


def _is_plain(value: Any, hint: Any) -> bool:
    """Returns whether a value without items has a type."""
    if hint is float and isinstance(value, float):
        return math.isfinite(value)
    if hint in (int, float):
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST
    if typing.get_origin(hint) is Literal:
        return value in typing.get_args(hint)
    if hint is datetime.datetime:
        return isinstance(value, str) and _is_time(value)
    return hint is Any or (value is None if hint in (None, types.NoneType) else isinstance(value, hint))


def _is_time(text: str) -> bool:
    try:
        datetime.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return False
    return True
