"""Overrides `--set PATH=VALUE`: subclasses of an experiment with changed knobs or config fields."""

import typing
from collections.abc import Sequence
from typing import Any

import fiddle as fdl

from layers.errors import UsageError, did_you_mean
from layers.specs import P, Specs
from registry.config_paths import field_names, get_field, is_row, path_steps
from registry.earlier.renamed import knob_advice
from registry.experiment import Experiment, knob_types, knobs_set_by, known_rows
from registry.user_code import building
from registry.values import is_mapping, parse, read, show

METHODS = {"task": "Task", "train": "Train", "test": "Test"}  # of experiments, by the first part of config paths


def override(cls: type[Experiment], assignments: Sequence[str]) -> type[Experiment]:
    """Returns a subclass of `cls` with the assignments applied in order.

    `KNOB=VALUE` sets a knob, `WEIGHTS.row=P(...)` one row of a spec table, `OPTIMIZERS.embedding=sgd` one entry of a
    mapping; values derived from them change accordingly. `task.`, `train.` and `test.` paths set a field of the config
    that the method returns.

    Raises:
      UsageError: an unknown knob or path, or an invalid value; the message names the closest valid name.
    """
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        path = path.strip()
        if not equals or not path:
            raise UsageError(f"--set={assignment} is not of the form PATH=VALUE. Write for example --set=BATCH_SIZE=8.")
        head = path.partition(".")[0]
        overrides = (*cls.overrides, f"{path}={text}")
        with knobs_set_by("--set"):
            if head in METHODS:
                cls = _with_field(cls, path, text).derive(overrides=overrides)
            else:
                cls = cls.derive(overrides=overrides, **_knob(cls, path, text))
    return cls


def _knob(cls: type[Experiment], path: str, text: str) -> dict[str, Any]:
    name, _, row = path.partition(".")
    types = knob_types(cls)
    if name not in types:
        known = [*types, *METHODS] if name.isupper() else [*METHODS, *types]
        advice = knob_advice(name) or did_you_mean(name, known)
        raise UsageError(f"{cls.__name__} has no knob or config '{name}'. {advice}")
    if types[name] is Specs:
        rows = _with_row(known_rows(cls, name), row, text, path)
        return {name: getattr(cls, name) | Specs(**{row: rows[row]})}
    if row and is_mapping(types[name]):
        return {name: {**getattr(cls, name), row: read(text, typing.get_args(types[name])[1], path)}}
    if row:
        raise UsageError(f"{name} is one value, {show(getattr(cls, name))}, without fields (got '{path}').")
    return {name: read(text, types[name], name)}


def _with_row(table: Specs, row: str, text: str, path: str) -> Specs:
    if row not in table:
        raise UsageError(
            f"Unknown row '{row}' in '{path}'. {did_you_mean(row, table)} (--set changes existing rows; a class "
            f"declares new ones.)"
        )
    value = parse(text)
    if not isinstance(value, P):
        raise UsageError(f"{path} takes a spec, as in {path}={show(table[row])} (got {show(value)}).")
    return table | Specs(**{row: value})


def _with_field(cls: type[Experiment], path: str, text: str) -> type[Experiment]:
    root = path.partition(".")[0]
    method = METHODS[root]
    inherited = getattr(cls, method)

    def changed(self: Experiment) -> fdl.Config:
        config = inherited(self)
        _set_field(config, path, text)
        return config

    with building(cls):
        changed(cls())  # detects a wrong path here, not at first use
    return cls.derive(**{method: changed})


def _set_field(config: Any, path: str, text: str) -> None:
    """Sets the field at `path`, which begins at `config`, to the value of `text`."""
    holder, name = config, ""
    for at, holder, name in path_steps(config, path):
        table = get_field(holder, name)
        if isinstance(table, Specs) and at != path:
            setattr(holder, name, _with_row(table, path.removeprefix(f"{at}."), text, path))
            return
    value = parse(text)
    if isinstance(holder, dict):
        holder[name] = value
        return
    current = get_field(holder, name)
    hint = Any if is_row(holder) else field_types(holder).get(name, Any)
    if isinstance(value, str | int | float | tuple | None) and (isinstance(current, fdl.Config | Specs | dict)):
        inside = ", ".join(field_names(current)[:6])
        fits_none = value is None and type(None) in typing.get_args(hint)
        if not fits_none:
            raise UsageError(f"{path} is a config, not a field. Set one of its fields ({inside}).")
    setattr(holder, name, read(text, hint, path))


def field_types(config: Any) -> dict[str, Any]:
    """Returns the declared types of a config's fields."""
    target = fdl.get_callable(config)
    return typing.get_type_hints(target)
