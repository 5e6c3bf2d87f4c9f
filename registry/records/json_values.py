"""JSON values of the registry tool: numbers, booleans, null, text and arrays, with their source text alongside.

Snapshots (experiment.json, golden files) store values as the text that `show` returns, which distinguishes 1 from 1.0.
"""

import ast
from typing import Any

from registry.records.record import Snapshot


def value(text: str) -> Any:
    """Returns the JSON value of a text from `registry.values.show`: `4`, `null`, `[2, 4]`; other text is unchanged.

    >>> value("(2, 4)"), value("'gelu'"), value("P(None, 'model')")
    ([2, 4], 'gelu', "P(None, 'model')")
    """
    try:
        literal = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):  # the last two: nested too deeply
        return text
    return _plain(literal) if _is_plain(literal) else text


def text_of(found: Any) -> str:
    """Returns a short text of a JSON value: text without quotes, `[2, 4]` as `2,4`.

    >>> text_of("gelu"), text_of([2, 4]), text_of(None), text_of(1e-3)
    ('gelu', '2,4', 'None', '0.001')
    """
    return ",".join(map(text_of, found)) if isinstance(found, list) else str(found)


def _is_plain(literal: Any) -> bool:
    if isinstance(literal, tuple | list):
        return all(map(_is_plain, literal))
    return literal is None or isinstance(literal, bool | int | float | str)


def _plain(literal: Any) -> Any:
    return [_plain(item) for item in literal] if isinstance(literal, tuple | list) else literal


def of_snapshot(data: Snapshot) -> dict[str, Any]:
    """Converts data of `show`: values of knobs and config, and their texts in `text` and `config_text`."""
    knobs = {
        name: {**knob, "value": value(knob["value"]), "text": knob["value"]} for name, knob in data["knobs"].items()
    }
    config = {path: value(text) for path, text in data["config"].items()}
    return {**data, "knobs": knobs, "config": config, "config_text": data["config"]}


def of_difference(data: dict[str, Any]) -> dict[str, Any]:
    """Converts data of `diff`: values of both sides, and their texts in `text_a` and `text_b`, null if missing."""
    return {**data, **{part: [_both(row) for row in data[part]] for part in ("knobs", "config")}}


def _both(row: dict[str, Any]) -> dict[str, Any]:
    values = {side: None if row[side] is None else value(row[side]) for side in ("a", "b")}
    return {**row, **values, **{f"text_{side}": row[side] for side in ("a", "b")}}


def of_steps(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Converts data of `explain`: the value of each step, and its text in `text`."""
    return [{**row, "value": value(row["value"]), "text": row["value"]} for row in rows]
