"""JSON values in files that may be damaged: parsing with one kind of error, and the check of their types."""

import datetime
import functools
import json
import math
import sys
import types
import typing
from typing import Annotated, Any, Literal, TypedDict

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
    if (wrong := _misfit(value, hint)) is not None:
        raise ValueError(f"{name}{wrong}")


def _misfit(value: Any, hint: Any) -> str | None:
    """Returns the path of the first value that does not fit, and what is wrong with it; None if all fits."""
    kind, arguments = _parts(hint)
    if kind in (typing.Union, types.UnionType):
        wrong = [_misfit(value, each) for each in arguments]
        return None if None in wrong else wrong[0]
    if kind is Annotated:
        least = arguments[1]
        return _misfit(value, arguments[0]) or (None if value >= least else f" is less than {least}")
    if kind is dict:
        if not isinstance(value, dict):
            return " is not an object"
        if wrong := [key for key in value if _misfit(key, arguments[0])]:
            return f" has the key {wrong[0]!r}"
        items = [(f".{key}", item, arguments[1]) for key, item in value.items()]
    elif kind is TypedDict:
        if not isinstance(value, dict):
            return " is not an object"
        if missing := sorted(hint.__required_keys__ - value.keys()):
            return f" has no {missing[0]}"
        items = [(f".{key}", value[key], each) for key, each in arguments if key in value]
    elif kind in (list, tuple):
        if not isinstance(value, list) or (kind is tuple and len(value) != len(arguments)):
            return f" is not an array{f' of {len(arguments)}' if kind is tuple else ''}"
        hints = arguments if kind is tuple else arguments * len(value)
        items = [(f"[{number}]", *pair) for number, pair in enumerate(zip(value, hints, strict=True))]
    else:
        shown = NAMES.get(hint) or " or ".join(map(repr, arguments)) or "null"
        return None if _is_plain(value, hint) else f" is not {shown}"
    for step, item, each in items:
        if not (each is str and type(item) is str) and (wrong := _misfit(item, each)) is not None:
            return f"{step}{wrong}"
    return None


@functools.cache
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Returns the kind of a type and its arguments; of a TypedDict, the names and types of its fields."""
    if typing.is_typeddict(hint):
        return TypedDict, tuple(typing.get_type_hints(hint, include_extras=True).items())
    return typing.get_origin(hint), typing.get_args(hint)


def _is_plain(value: Any, hint: Any) -> bool:
    """Returns whether a value without items has a type."""
    if hint is float and isinstance(value, float):
        return math.isfinite(value)
    if hint in (int, float):
        largest = LARGEST if hint is int else sys.float_info.max  # FLOPs of a run are integers beyond 64 bits
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= largest
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
