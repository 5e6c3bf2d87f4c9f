"""Records of experiments for their pages: the snapshot, line of ancestors, meanings of knobs, cuts of weights."""

import ast
import functools
import inspect
import os
from pathlib import Path
from typing import Any

from layers.errors import VortaroError, file_line
from layers.specs import Specs, axes_of
from registry.experiment import REGISTRY, Experiment, cls_key, doc_line, written_classes
from registry.records.knob_docs import groups, meanings
from registry.records.record import own_knobs
from registry.records.snapshot import snapshot
from registry.resolve import resolve
from registry.user_code import clear_errors
from registry.values import parse, show

Record = dict[str, Any]


def record(name: str, imports: tuple[str, ...] = ()) -> Record:
    """Returns the record of an experiment as plain data; of one that cannot be built, its name and the error.

    Args:
      name: its key, as in `registry list`.
      imports: modules to import first.
    """
    try:
        with clear_errors(f"{name} cannot be built"):
            return _record(resolve(name, imports=imports))
    except VortaroError as error:
        return {"name": name, "error": str(error)}


def _record(experiment: Experiment) -> Record:
    cls = written_classes(type(experiment))[0]
    data = snapshot(experiment)
    return {
        "name": cls_key(cls),
        "doc": inspect.cleandoc(cls.__doc__ or ""),
        "place": _place(cls),
        "ancestors": [_ancestor(base) for base in cls.__mro__ if base is not object],
        "knobs": data["knobs"],
        "own": own_knobs(data["knobs"]),
        "meanings": meanings(cls),
        "groups": groups(cls),
        "mixer": kinds(getattr(cls, "MIXER", ())),
        "feed_forward": kinds(getattr(cls, "FFN", ())),
        "config": data["config"],
        "phases": data.get("phases", []),
        "mesh": data["mesh"],
        "weights": [{**row, "cut": [list(axes_of(entry)) for entry in parse(row["spec"])]} for row in data["weights"]],
        "totals": data["totals"],
    }


def kinds(value: Any) -> list[str]:
    """Returns the distinct names in a knob that has one value or a pattern over layers, without "none".

    >>> kinds(("experts", "none", "experts"))
    ['experts']
    """
    names = value if isinstance(value, tuple) else (value,)
    return list(dict.fromkeys(str(name) for name in names if name not in (None, "none")))


def _ancestor(cls: type) -> Record:
    """Returns a class of the line of ancestors: its name, place, first line of documentation, and what it sets."""
    is_experiment = issubclass(cls, Experiment)
    key = cls_key(cls) if is_experiment else f"{cls.__module__}.{cls.__name__}"
    declared = set(inspect.get_annotations(cls))
    stated = [(knob, _stated(cls, knob)) for knob in vars(cls) if knob.isupper()]
    return {
        "name": key,
        "is_entry": key in REGISTRY,
        "place": _place(cls),
        "doc": doc_line(cls),
        "sets": [(knob, value) for knob, value in stated if value and knob not in declared],
        "declares": [(knob, value) for knob, value in stated if value and knob in declared],
    }


def _stated(cls: type, knob: str) -> str:
    """Returns the value of a knob in the body of a class; of a table of specs, its own rows, empty without any."""
    value = vars(cls)[knob]
    if isinstance(value, Specs):
        value = vars(cls).get("_own_rows", {}).get(knob, value)
        return show(value) if len(value) else ""
    return show(value)


def _place(cls: type) -> str:
    """Returns the file and line of a class; its module if the source cannot be read."""
    if "_place" in vars(cls):
        return file_line(*vars(cls)["_place"])
    file = inspect.getsourcefile(cls)
    line = _lines(file).get(cls.__name__) if file else None
    return file_line(file, line) if file and line else cls.__module__


@functools.cache
def _lines(file: str) -> dict[str, int]:
    """Returns the line of each class of a file."""
    try:
        tree = ast.parse(Path(os.path.abspath(file)).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return {}
    return {node.name: node.lineno for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
