"""Knobs that an entry states although nothing reads them with its other knobs, and the knob that makes them useless."""

import ast
import functools
import inspect
import types
import typing
from collections.abc import Iterator
from typing import Any

from layers.errors import UsageError, VortaroError
from layers.roots import FOLDER
from registry.experiment import TEMPLATES, Experiment, knob_types, owner, written_classes
from registry.explain import where_set
from registry.overrides import METHODS
from registry.values import listed_values, of_one_layer, show


def reads_of(cls: type[Experiment]) -> tuple[set[str], bool]:
    """Returns the names of attributes that Task(), Train() and Test() read, and whether all of them succeeded."""
    recorder, reads = recorder_of(cls)
    failed = False
    for method in METHODS.values():
        try:
            getattr(recorder, method)()
        except VortaroError:
            failed = True
    return reads, not failed


def recorder_of(cls: type[Experiment]) -> tuple[Any, set[str]]:
    """Returns an experiment equal to cls(), and the names of its attributes that have been read."""
    reads: set[str] = set()

    def read(self: Any, name: str) -> Any:
        reads.add(name)
        return cls.__getattribute__(self, name)

    return cls.derive(__getattribute__=read)(), reads


def require_stated_knobs_act(experiment: Experiment) -> None:
    """Rejects a knob that the entry's own class or --set sets and nothing reads.

    A knob counts as read if Task(), Train() or Test() reads it, or if the runner or the tool does. Those that the entry
    inherits or that a run folder records may be without effect, and those that it states may become so by --set.

    Raises:
      UsageError: a knob has no effect; the message names the knob that makes it useless.
    """
    cls = type(experiment)
    entry = written_classes(cls)[0]
    derived = cls.__mro__[: cls.__mro__.index(entry)]
    recorded = [place for place, base in enumerate(derived) if "is_recorded" in vars(base)]
    derived = derived[: recorded[0]] if recorded else derived  # an earlier version may have accepted what a run states
    flags = ("--set", "PHASES[")
    by_flag = {name for base in derived if vars(base).get("set_by", "").startswith(flags) for name in vars(base)}
    mixins = [base for base in entry.__bases__ if not issubclass(base, Experiment)]
    by_entry = {name for base in (entry, *mixins) for name in vars(base)} - set(inspect.get_annotations(entry))
    by_entry = set() if entry.__module__.startswith(TEMPLATES) else by_entry  # of a family: for its entries
    for of, stated in ((cls, by_flag), (entry, by_entry)):
        stated = stated & knob_types(cls).keys() - inspect.get_annotations(Experiment).keys()
        reads, complete = reads_of(of) if stated else (set(), False)
        unread = stated - reads if complete else set()
        for knob in sorted(unread - _read_elsewhere() if unread else ()):
            setter = owner(of, knob)
            place = (
                setter if setter.startswith(flags) else where_set(next(b for b in of.__mro__ if knob in vars(b)), knob)
            )
            raise UsageError(f"{knob} = {show(getattr(of, knob))} has no effect{_reason(of, knob)} (set by {place}).")


def _reason(cls: type[Experiment], knob: str) -> str:
    """Returns the words that name the knob which makes `knob` useless, and its value with which it would act."""
    reads, _ = reads_of(cls)
    for other, hint in knob_types(cls).items():
        if other not in reads or other == knob:
            continue
        for value in _alternatives(other, hint, getattr(cls, other)):
            try:
                changed = cls.derive(**{other: value}, **_adapted(cls, other, value))
            except VortaroError:
                continue
            if knob in reads_of(changed)[0]:
                return f" with {other} = {show(getattr(cls, other))}. Remove it, or set {other} to {show(value)}"
    return ": nothing reads it with these settings. Remove it"


def _alternatives(knob: str, hint: Any, now: Any) -> Iterator[Any]:
    """Yields other values of a knob with few values; for one that may be None, None or a value."""
    if parts := _parts(knob):
        yield from (name for name in parts if name != now)
        return
    yield from (value for value in listed_values(hint) if value != now)
    hint = of_one_layer(hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        for arg in args:
            if (arg is types.NoneType) != (now is None):
                yield from ([None] if arg is types.NoneType else _alternatives(knob, arg, now) or ())
        return
    hint = args[0] if origin is typing.Annotated else hint
    if now is None and hint in (int, float, str):
        yield hint(1)


def _adapted(cls: type[Experiment], knob: str, value: Any) -> dict[str, Any]:
    """Returns the values of other knobs that a mixer or feed-forward layer needs."""
    if not (parts := _parts(knob)):
        return {}
    of_one = lambda name: () if isinstance(getattr(cls, name), tuple) else parts[value].takes[name][0]
    return {name: of_one(name) for name, _ in parts[value].misfits(cls)}


def _parts(knob: str) -> dict[str, Any]:
    from registry.templates.parts import PARTS  # templates import this package

    return PARTS.get(knob, {})


@functools.cache
def _read_elsewhere() -> frozenset[str]:
    """Returns the knobs that the source text of the runner and the tool reads: `experiment.KNOB`, `knobs["KNOB"]`."""
    files = [*(FOLDER / "runners").rglob("*.py"), *(FOLDER / "registry" / "tool").glob("*.py")]
    nodes = (node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            found.add(str(node.slice.value))
    return frozenset(name for name in found if name.isupper())
