"""Paths into the configs of an experiment, like task.model.stack.block.blocks.0.ffn: a walk, and a look-up by path."""

import inspect
from collections.abc import Iterator
from typing import Any

import fiddle as fdl

from layers.errors import UsageError, did_you_mean
from layers.specs import Specs
from registry.earlier.renamed import field_advice
from registry.values import show


def walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yields every config and field from `value` on, itself first, with its path, in the order of declaration.

    Fields that a config does not set have their defaults. Dicts, spec tables and tuples or lists of configs are
    yielded before their items; a config that is reached on two paths is yielded twice.
    """
    yield path, value
    for name in field_names(value):
        yield from walk(get_field(value, name), f"{path}.{name}")


def path_steps(config: Any, path: str) -> Iterator[tuple[str, Any, str]]:
    """Yields every step of a path: the path so far, the config (or dict, table, tuple) and the field's name in it.

    Args:
      config: the config of Task(), Train() or Test().
      path: its path and at least one field, as in "task.model.vocab_size".
    Raises:
      UsageError: the path is not one of a field; raised when the walk reaches the step.
    """
    root, *names = path.split(".")
    if not names:
        inside = ", ".join(field_names(config)[:6])
        raise UsageError(f"'{path}' is a config, not a field. Name one of its fields ({inside}).")
    at, holder = root, config
    for name in names:
        known = field_names(holder)
        if at != root and not known:
            raise UsageError(f"{at} is one value, {show(holder)}, without fields.")
        if name not in known:
            raise UsageError(f"Unknown field '{name}' in {at}. {field_advice(name) or did_you_mean(name, known)}")
        at = f"{at}.{name}"
        yield at, holder, name
        holder = get_field(holder, name)


def field_names(config: Any) -> list[str]:
    """Returns the names that may follow in a path from `config`."""
    if isinstance(config, fdl.Config):
        names = dict.fromkeys(inspect.signature(fdl.get_callable(config)).parameters)
        others = dict.fromkeys(name for name in config.__arguments__ if isinstance(name, str))  # values of **arguments
        return [name for name in names | others if name not in ("parent", "name")]
    if isinstance(config, dict | Specs):
        return list(config)
    return [str(index) for index in range(len(config))] if is_row(config) else []


def is_row(value: Any) -> bool:
    """Returns whether a value is a tuple or list of configs, which are addressed by number in a path."""
    return isinstance(value, tuple | list) and any(isinstance(item, fdl.Config) for item in value)


def get_field(config: Any, name: str) -> Any:
    """Returns the value of a field, or its default if the config does not set it."""
    if isinstance(config, dict | Specs):
        return config[name]
    if is_row(config):
        return config[int(name)]
    if name in config.__arguments__:
        return config.__arguments__[name]
    default = inspect.signature(fdl.get_callable(config)).parameters[name].default
    return None if default is inspect.Parameter.empty else default


def field_text(value: Any) -> str:
    """Returns the value of a field as source code; for a config, the class or function that it calls."""
    return show(fdl.get_callable(value) if isinstance(value, fdl.Config) else value)
