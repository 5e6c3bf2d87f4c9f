"""Values on a command line: parsed, checked against a type, and formatted."""

import ast
import dataclasses
import functools
import operator
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from layers.errors import UsageError, did_you_mean
from layers.specs import P, show_spec
from registry.phase import Phase
from registry.study import Study, Uniform


@dataclasses.dataclass(frozen=True)
class Above:
    """Annotation of a number that must exceed `bound`."""

    bound: float


Positive = Annotated[int, Above(0)]  # a size or a count
PositiveFloat = Annotated[float, Above(0)]

T = TypeVar("T")
PER_LAYER = "per layer"
if TYPE_CHECKING:
    PerLayer = T | Any  # a layer's own experiment has one value (registry.templates.model)
else:
    PerLayer = Annotated[T | tuple[T, ...], PER_LAYER]  # one value, or a pattern that repeats over the layers

CALLED = {cls.__name__: cls for cls in (P, Phase, Study, Uniform)}  # values that are written as calls

# What Python's parser and `_evaluated` raise for texts; the last two if parentheses or operators are nested too deeply.
INVALID_SOURCE = (ValueError, SyntaxError, TypeError, RecursionError, MemoryError)
_REPEATED = re.compile(r"\s*(\d+)\s*\*\s*(.+)")
_SIZES = re.compile(r"(\d+|\*)(x(\d+|\*))+")
_WORDS = {"true": True, "false": False, "none": None}


def parse(text: str) -> Any:
    """Returns a Python literal, a call of CALLED, true/false/none, or otherwise the text itself.

    >>> parse("2,4"), parse("1e-3"), parse("gelu_tanh")
    ((2, 4), 0.001, 'gelu_tanh')
    """
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return _evaluated(ast.parse(text.strip(), mode="eval").body)
    except INVALID_SOURCE:
        return text


def _evaluated(tree: ast.expr) -> Any:
    """Returns the value of a literal, of a call of CALLED, and of tuples and dicts of them; ValueError for others."""
    if isinstance(tree, ast.Dict) and None not in tree.keys:
        return {
            ast.literal_eval(key): _evaluated(value) for key, value in zip(tree.keys, tree.values, strict=True) if key
        }
    if isinstance(tree, ast.Tuple | ast.List):
        return tuple(map(_evaluated, tree.elts)) if isinstance(tree, ast.Tuple) else list(map(_evaluated, tree.elts))
    if not isinstance(tree, ast.Call):
        return ast.literal_eval(tree)
    made = CALLED.get(getattr(tree.func, "id", ""))
    if made is None or (tree.keywords if made is P else tree.args):
        raise ValueError("another call")
    keywords = {keyword.arg: _evaluated(keyword.value) for keyword in tree.keywords if keyword.arg}
    return made(*map(_evaluated, tree.args), **keywords)


def show(value: Any) -> str:
    """Returns a value as source code; `parse` reads it back."""
    if isinstance(value, P):
        return show_spec(value)
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return f"{value.__module__}.{value.__qualname__}"
    return repr(dict(value) if isinstance(value, types.MappingProxyType) else value)


def show_type(hint: Any) -> str:
    """Returns a type in words: `float or None`, `one of 'rms', 'layer'`."""
    if hint is types.NoneType:
        return "None"
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if is_per_layer(hint):
        return f"{show_type(of_one_layer(hint))}, or a pattern of these over layers such as 5*A+B"
    if origin is Literal:
        return "one of " + ", ".join(repr(choice) for choice in args)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(show_type(arg) for arg in args)
    if origin is Annotated:
        return show_type(args[0]) + "".join(f" above {mark.bound:g}" for mark in args[1:] if isinstance(mark, Above))
    if origin is tuple:
        items = args[:1] if args[1:] == (...,) else args
        return f"a tuple of {' and '.join(show_type(item) for item in items)}"
    if is_mapping(hint):
        return f"a dict of {show_type(args[0])} to {show_type(args[1])}"
    return getattr(hint, "__name__", str(hint))


def is_mapping(hint: Any) -> bool:
    """Returns whether a knob of this type is a mapping, whose entries are values of their own."""
    return typing.get_origin(hint) is Mapping


def is_per_layer(hint: Any) -> bool:
    """Returns whether a knob of this type may have a pattern over layers as its value."""
    return typing.get_origin(hint) is Annotated and PER_LAYER in typing.get_args(hint)


def of_one_layer(hint: Any) -> Any:
    """Returns the type of the knob in one layer."""
    if not is_per_layer(hint):
        return hint
    return functools.reduce(operator.or_, typing.get_args(typing.get_args(hint)[0])[:-1])


def listed_values(hint: Any) -> tuple[Any, ...]:
    """Returns the values that a type lists, of one layer: choices, or false and true; empty for other types."""
    hint = of_one_layer(hint)
    if typing.get_origin(hint) is Literal:
        return typing.get_args(hint)
    return (False, True) if hint is bool else ()


def read(text: str, hint: Any, name: str) -> Any:
    """Returns the value of type `hint` in `text`: a literal if the type accepts it, otherwise the text as written.

    Sizes of a mesh may be joined by x, the format of tables (`2x4`, `*x1`).

    >>> read("1.10", str | None, "DATASET_CONFIG"), read("1.10", float | None, "CLIP_NORM")
    ('1.10', 1.1)

    Raises:
      UsageError: the text is not such a value; the message describes what `name` takes.
    """
    is_sizes = typing.get_origin(hint) is tuple and typing.get_args(hint)[0] is int
    if is_sizes and _SIZES.fullmatch(text):
        text = ",".join("-1" if size == "*" else size for size in text.split("x"))
    fits, value = _fit_text(text, hint)
    return value if fits else convert(parse(text), hint, name)


def convert(value: Any, hint: Any, name: str) -> Any:
    """Returns `value` converted to the type `hint`, if the conversion loses nothing.

    Raises:
      UsageError: the value does not fit; the message describes what `name` takes.
    """
    fits, result = _fit(value, hint)
    if fits:
        return result
    choices = [choice for choice in typing.get_args(of_one_layer(hint)) if isinstance(choice, str)]
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
    if origin is Annotated:
        fits, value = _fit(value, args[0])
        return fits and all(value > mark.bound for mark in args[1:] if isinstance(mark, Above)), value
    if origin is tuple:
        return _fit_items(value if isinstance(value, tuple | list) else (value,), args, _fit)
    if is_mapping(hint):
        items = {key: _fit(item, args[1]) for key, item in value.items()} if isinstance(value, Mapping) else {}
        fits = isinstance(value, Mapping) and all(isinstance(key, args[0]) and fit for key, (fit, _) in items.items())
        return fits, {key: item for key, (_, item) in items.items()}
    if hint is types.NoneType:
        return value is None, None
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return (True, float(value)) if abs(value) <= sys.float_info.max else (False, None)
    if hint is int and isinstance(value, float) and value.is_integer():
        return True, int(value)
    if isinstance(value, bool):
        return hint is bool, value
    return isinstance(hint, type) and isinstance(value, hint), value


def _fit_text(text: str, hint: Any) -> tuple[bool, Any]:
    """Like `_fit`, for text: the text itself is accepted only if it is not a literal of the type."""
    value, origin, args = parse(text), typing.get_origin(hint), typing.get_args(hint)
    if value != text and (fit := _fit(value, hint))[0]:
        return fit
    if origin in (typing.Union, types.UnionType):
        return next((fit for fit in (_fit_text(text, arg) for arg in args) if fit[0]), (False, None))
    if is_per_layer(hint):
        unfolded = _unfolded(text)
        pattern = typing.get_args(args[0])[-1]
        return _fit_text(unfolded, pattern if "," in unfolded else args[0])
    if origin is Literal and text.lower() in _WORDS:  # REMAT=None is the choice "none"
        return _fit(text.lower(), hint)
    if origin is tuple:
        return _fit_items(_items(text), args, _fit_text)
    return _fit(text, hint)


def _fit_items(items: Sequence[Any], hints: Sequence[Any], fit: Callable[[Any, Any], tuple[bool, Any]]):
    """Converts the items of a tuple, each by the type at its position: `tuple[int, ...]` or `tuple[str, float]`."""
    hints = [hints[0]] * len(items) if tuple(hints[1:]) == (...,) else hints
    fits = [fit(item, hint) for item, hint in zip(items, hints, strict=False)]
    return len(items) == len(hints) and all(fit for fit, _ in fits), tuple(item for _, item in fits)


def _items(text: str) -> list[str]:
    """Returns the items of a tuple as text, with or without parentheses."""
    text = text.strip()
    try:
        tree = ast.parse(text, mode="eval").body
    except INVALID_SOURCE:
        return [item.strip() for item in text.split(",")]
    if isinstance(tree, ast.Tuple | ast.List):
        return [ast.get_source_segment(text, item) or "" for item in tree.elts]
    return [item.strip() for item in text.split(",")]


def _unfolded(text: str) -> str:
    """Returns a pattern over layers as a tuple: `5*local + global` is five times local, then global."""
    items = []
    for part in text.split("+"):
        repeated = _REPEATED.fullmatch(part)
        items += [repeated[2].strip()] * int(repeated[1]) if repeated else [part.strip()]
    return text if len(items) < 2 else ",".join(items)
