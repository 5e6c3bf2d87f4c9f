"""Knobs without effect: stated for nothing, declared by a user's class and never read, or hidden by a property."""

import ast
import functools
import inspect
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

from layers.errors import UsageError, did_you_mean, file_line
from layers.roots import FOLDER, is_ours
from registry.experiment import Experiment, cls_key, is_written, knob_types
from registry.explain import where_set
from registry.knobs.stated import recorder_of, require_stated_knobs_act
from registry.overrides import METHODS
from registry.user_code import package_files


def require_effect(experiment: Experiment) -> None:
    """Rejects a knob without effect: one that the entry or --set sets and nothing reads at the current settings, one
    that a user's class declares and no code reads, and one that a user's property hides.

    A declared knob counts as read if Task(), Train() or Test() reads it at the current settings, or if its name is read
    anywhere in the source of the user's package (for a single module: of its folder) or of the tool and the runner. So
    one that matters only under other settings is not rejected, nor one that a user's own script reads; one that only
    dead code reads is not detected. Declarations of Vortaro's own families are skipped: a test reads their source.

    Raises:
      UsageError: a knob has no effect; the message names the nearest one that a base declares.
    """
    cls = type(experiment)
    users = [base for base in cls.__mro__ if _is_users(base)]
    require_stated_knobs_act(experiment)
    if not users:
        return
    inherited = {name for base in cls.__mro__ if is_ours(base.__module__) for name in _declared(base)}
    fresh = {name: base for base in users for name in _declared(base) if name not in inherited}
    hiding = {name: base for name in knob_types(cls) if (base := _property_of(users, name.lower())) is not None}
    if not fresh and not hiding:
        return
    recorder, reads = recorder_of(cls)
    for name, base in hiding.items():
        _require_property_reads(recorder, reads, base, name)
    reads.clear()
    for method in METHODS.values():
        getattr(recorder, method)()
    unread = [name for name in fresh if name not in reads]
    unread = [name for name in unread if name not in _named_in_source(unread, users)]
    for name in unread:
        near = did_you_mean(name, knob_types(cls).keys() - fresh.keys())
        near = f"{near} " if near.startswith("Did you mean") else ""
        raise UsageError(
            f"{name} of {cls_key(cls)} has no effect ({where_set(fresh[name], name)}): nothing reads it. {near}Read it "
            f"as self.{name}, or remove it."
        )


def _is_users(cls: type) -> bool:
    """Returns whether the class is a user's: an experiment or a mixin."""
    return cls is not object and is_written(cls) and not is_ours(cls.__module__)


def _declared(cls: type) -> list[str]:
    return [name for name in inspect.get_annotations(cls) if name.isupper()]


def _property_of(users: Collection[type], name: str) -> type | None:
    """Returns the user's class whose property of that name is effective; None if there is none."""
    base = next((base for base in users if name in vars(base)), None)
    return base if base and isinstance(vars(base)[name], property | functools.cached_property) else None


def _require_property_reads(recorder: Any, reads: set[str], base: type, knob: str) -> None:
    """Raises a UsageError if the property `num_heads` neither reads NUM_HEADS nor names it, or its base's value."""
    made: Any = vars(base)[knob.lower()]
    code = getattr(getattr(made, "fget", None) or getattr(made, "func", None), "__code__", None)
    reads.clear()
    try:
        getattr(recorder, knob.lower())
    except Exception:
        return  # the code that reads the property reports its error
    if code is not None and knob not in reads and not {knob, knob.lower()} & set(_names(code)):
        raise UsageError(
            f"{cls_key(base)}.{knob.lower()} hides {knob} ({file_line(code.co_filename, code.co_firstlineno)}). Set "
            f"{knob} instead, or read self.{knob} in the property."
        )


def _names(code: CodeType) -> Iterator[str]:
    """Yields names and texts that a function uses, including nested functions."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, CodeType):
            yield from _names(constant)


def _named_in_source(names: Collection[str], users: Collection[type]) -> set[str]:
    """Returns those of `names` that source text reads; all of them if a user's class has no source file."""
    if not names:
        return set()
    files = {path for place in ("registry", "registry/tool") for path in (FOLDER / place).glob("*.py")}
    files.update((FOLDER / "runners").rglob("*.py"))
    for base in users:
        file = getattr(sys.modules.get(base.__module__), "__file__", None)
        if file is None:
            return set(names)
        files.update(package_files(Path(file), base.__module__))
    found: set[str] = set()
    for file in files:
        found |= _read_in(file, names)
    return found


def _read_in(file: Path, names: Collection[str]) -> set[str]:
    try:
        text = file.read_text(encoding="utf-8")
        nodes = list(ast.walk(ast.parse(text))) if any(name in text for name in names) else []
    except (OSError, ValueError, SyntaxError):
        return set()
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
    read |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    read |= {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return read & set(names)
