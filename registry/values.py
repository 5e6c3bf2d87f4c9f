"""Values as they are written on a command line: parsed, held against a type, and written back."""

import ast
import re
import types
import typing
from typing import Any, Literal

from layers.errors import UsageError, did_you_mean
from layers.specs import P, show_spec

_SIZES = re.compile(r"(\d+|\*)(x(\d+|\*))+")
_WORDS = {"true": True, "false": False, "none": None}


def parse(text: str) -> Any:
    """A Python literal, `P(...)`, true/false/none, or else the text itself.

    >>> parse("2,4"), parse("1e-3"), parse("gelu_tanh")
    ((2, 4), 0.001, 'gelu_tanh')
    """
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "P" and not tree.keywords:
            return P(*[ast.literal_eval(argument) for argument in tree.args])
        return ast.literal_eval(tree)
    except (ValueError, SyntaxError, TypeError):
        return text


def show(value: Any) -> str:
    """A value as code would write it; `parse` reads it back."""
    if isinstance(value, P):
        return show_spec(value)
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return f"{value.__module__}.{value.__qualname__}"
    return repr(value)


def show_type(hint: Any) -> str:
    """A type in words: `float or None`, `one of 'rms', 'layer'`."""
    if hint is types.NoneType:
        return "None"
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(repr(choice) for choice in args)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(show_type(arg) for arg in args)
    if origin is tuple:
        return f"a tuple of {show_type(args[0])}"
    return getattr(hint, "__name__", str(hint))


def convert_parsed(value: Any, hint: Any, name: str) -> Any:
    """`convert` of what `parse` gave: `none` is the word where None is not taken, as in REMAT=none, and sizes may be
    joined by x, as tables print a mesh (`2x4`, `*x1`).
    """
    if isinstance(value, str) and typing.get_args(hint)[:1] == (int,) and _SIZES.fullmatch(value):
        value = tuple(-1 if size == "*" else int(size) for size in value.split("x"))
    is_word = value is None and not _fit(None, hint)[0] and _fit("none", hint)[0]
    return convert("none" if is_word else value, hint, name)


def convert(value: Any, hint: Any, name: str) -> Any:
    """`value` as the type `hint`, where nothing is lost by it.

    Raises:
      UsageError: it does not fit; the sentence says what `name` takes.
    """
    fits, result = _fit(value, hint)
    if fits:
        return result
    choices = [choice for choice in typing.get_args(hint) if isinstance(choice, str)]
    near = f" {did_you_mean(value, choices)}" if choices and isinstance(value, str) else ""
    raise UsageError(f"{name} takes {show_type(hint)}, not {show(value)}.{near}")


def _fit(value: Any, hint: Any) -> tuple[bool, Any]:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True, value
    if origin in (typing.Union, types.UnionType):
        return next((fit for fit in (_fit(value, arg) for arg in args) if fit[0]), (False, None))
    if origin is Literal:
        return value in args, value
    if origin is tuple:
        value = value if isinstance(value, tuple | list) else (value,)
        fits = [_fit(item, args[0]) for item in value]
        return all(fit for fit, _ in fits), tuple(item for _, item in fits)
    if hint is types.NoneType:
        return value is None, None
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return True, float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        return True, int(value)
    if hint is str and isinstance(value, int | float) and not isinstance(value, bool):
        return True, str(value)
    if isinstance(value, bool):
        return hint is bool, value
    return isinstance(hint, type) and isinstance(value, hint), value
