"""Requests of the registry tool: the names that a verb takes, and its output as JSON or as text."""

import argparse
import json
from collections.abc import Callable
from typing import Any

from layers.errors import UsageError


def names(options: argparse.Namespace, least: int, most: int | None, what: str) -> list[str]:
    """Returns the names on a command line.

    Args:
      options: the parsed command line.
      least: the least number of names.
      most: the greatest number; None for any.
      what: what the verb takes, for the error.

    Raises:
      UsageError: there are fewer or more.
    """
    count = len(options.names)
    if count < least or (most is not None and count > most):
        raise UsageError(f"{options.verb} takes {what} (got {count} names).")
    return options.names


def printed(
    options: argparse.Namespace,
    data: Any,
    draw: Callable[[Any], None],
    in_json: Callable[[Any], Any] = lambda data: data,
) -> int:
    """Prints data as JSON with --json, else by `draw`; returns exit code 0."""
    if options.json:
        print(json.dumps(in_json(data), indent=2))
    else:
        draw(data)
    return 0
