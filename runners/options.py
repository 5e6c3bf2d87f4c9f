"""Command-line flags from dataclasses: each field made by `option` becomes a flag of the same name."""

import argparse
import dataclasses
import types
import typing
from typing import Any, TypeVar

T = TypeVar("T")


def option(help: str, *, metavar: str | None = None, advice: str = "", **default: Any) -> Any:
    """Returns a dataclass field that is also a flag.

    Args:
      help: the text of --help.
      metavar: how --help shows the value.
      advice: what to do instead, for a command that does not have the flag.
      default: `default=`, unless the flag is required.
    """
    metadata = {"help": help, "metavar": metavar, "advice": advice}
    return dataclasses.field(metadata=metadata, **default)


def fields(cls: type) -> list[dataclasses.Field]:
    """Returns the fields of a dataclass that are flags."""
    return [field for field in dataclasses.fields(cls) if "help" in field.metadata]


def add_options(parser: Any, cls: type) -> None:
    """Adds the flags of a dataclass to a parser, or to a group of one.

    A bool that is False by default is switched on by its flag; other bools also take --no-NAME. A tuple takes one value
    per flag. A Literal of texts takes one of them. A field without a default gets dataclasses.MISSING if the flag is
    not given.
    """
    kinds = typing.get_type_hints(cls)
    for field in fields(cls):
        kind, flag = kinds[field.name], f"--{field.name}"
        if isinstance(kind, types.UnionType):
            kind = kind.__args__[0]
        shown: dict[str, Any] = {"help": field.metadata["help"]}
        if kind is bool:
            action = "store_true" if field.default is False else argparse.BooleanOptionalAction
            parser.add_argument(flag, action=action, default=field.default, **shown)
            continue
        words = {int: "N", float: "X"}
        shown |= {"metavar": field.metadata["metavar"] or words.get(kind, "TEXT")}
        if typing.get_origin(kind) is typing.Literal:
            kind, shown = str, {"help": field.metadata["help"], "choices": typing.get_args(kind)}
        if kind in (int, float, str):
            parser.add_argument(flag, type=kind, default=field.default, **shown)
        else:
            parser.add_argument(flag, action="append", default=[], **shown)


def from_flags(cls: type[T], flags: argparse.Namespace) -> T:
    """Returns the dataclass with the values of parsed flags."""
    values = {field.name: getattr(flags, field.name) for field in fields(cls)}
    return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})
