"""JSON of files: one kind of error for all damage, and values of the wrong type named by their path."""

import datetime
from typing import Annotated, Any, Literal, TypedDict

import pytest

from tasks.storage.json_values import Count, parsed, require_type


class _Needed(TypedDict):
    step: Count


class Line(_Needed, total=False):
    loss: float | None
    names: list[str]
    pair: tuple[int, str]
    when: datetime.datetime
    kinds: dict[Literal["a", "b"], bool]
    size: Annotated[int, 1]
    any: Any


@pytest.mark.parametrize("text", ["", "{", b"\xff", b'{"a": "\xff"}', "[" * 200_000, "1" * 10_000])
def test_what_is_not_json_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"."):
        parsed(text)


@pytest.mark.parametrize(
    "value",
    [
        {"step": 0},
        {"step": 3, "loss": 2, "names": ["a"], "pair": [1, "b"], "kinds": {"a": True}, "other": [{}]},
        {"step": 3, "loss": None, "when": "2026-01-01T00:00:00+00:00", "size": 1, "any": {"a": [1]}},
    ],
)
def test_values_that_fit(value):
    require_type(value, Line, "the line")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "the line is not an object"),
        ({}, "the line has no step"),
        ({"step": True}, "the line.step is not an integer"),
        ({"step": 2**64}, "the line.step is not an integer"),
        ({"step": -1}, "the line.step is less than 0"),
        ({"step": 1, "loss": "2"}, "the line.loss is not a number"),
        ({"step": 1, "loss": float("inf")}, "the line.loss is not a number"),
        ({"step": 1, "names": ["a", 1]}, r"the line.names\[1\] is not a text"),
        ({"step": 1, "pair": [1]}, "the line.pair is not an array of 2"),
        ({"step": 1, "when": "soon"}, "the line.when is not a time"),
        ({"step": 1, "kinds": {"c": True}}, "the line.kinds has the key 'c'"),
        ({"step": 1, "kinds": {"a": 1}}, "the line.kinds.a is not true or false"),
        ({"step": 1, "size": 0}, "the line.size is less than 1"),
    ],
)
def test_values_that_do_not_fit(value, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        require_type(value, Line, "the line")
