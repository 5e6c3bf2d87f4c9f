"""Keys of a config.json: reading such that no key is left out, and the two-way relations of keys and knobs."""

import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from layers.errors import UsageError, did_you_mean
from tasks.storage.json_values import parsed

REQUIRED: Any = object()  # default of keys that a config.json must have
Knobs = dict[str, Any]


class Config:
    """The content of a config.json. `read` returns values; `require_all_read` refuses keys that nothing has read.

    Attributes:
      source: name of the file in errors.
      model_type: the family's name in the file.
    """

    def __init__(self, content: Mapping[str, Any], source: str):
        self._content = dict(content)
        self._unread = dict.fromkeys(content)
        self.source = source
        self.model_type = self.read("model_type", REQUIRED, str)

    def has(self, name: str) -> bool:
        """Returns whether the key has a value other than null."""
        return self._content.get(name) is not None

    def has_value(self, name: str, value: Any) -> bool:
        """Returns whether the key has this value, or is an object that contains it."""
        return _has_value(self._content.get(name), value)

    def read(self, name: str, default: Any, kind: type | tuple[type, ...], *, nullable: bool = False) -> Any:
        """Returns the value of a key; `default` if it is missing, None if it is null and may be.

        Raises:
          UsageError: a required key is missing, or the value is of another type or not finite.
        """
        self._unread.pop(name, None)
        if name not in self._content:
            if default is REQUIRED:
                raise UsageError(f"'{self.source}' has no {name}. Add it.")
            return default
        value = self._content[name]
        if value is None and nullable:
            return None
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if float in kinds and isinstance(value, int | float) and not isinstance(value, bool):
            if not abs(value) <= sys.float_info.max:
                raise UsageError(f"{name} in '{self.source}' must be finite (got {json.dumps(value)}).")
            return float(value)
        if not isinstance(value, kinds) or (isinstance(value, bool) and not {bool, object} & set(kinds)):
            names = " or ".join(each.__name__ for each in kinds)
            raise UsageError(f"{name} in '{self.source}' must be of type {names} (got {json.dumps(value)}).")
        return value

    def refuse(self, name: str, advice: str) -> UsageError:
        """Returns the error for a value that the template cannot represent."""
        return UsageError(
            f"{name} = {json.dumps(self._content.get(name))} in '{self.source}' is not supported for "
            f"{self.model_type} models. {advice}"
        )

    def require_all_read(self, known: set[str]) -> None:
        """Raises a UsageError for the first key that nothing has read."""
        for name in self._unread:
            raise UsageError(
                f"'{self.source}' has the key {name}, which is unknown for {self.model_type} models. "
                f"{did_you_mean(name, known)} Remove it if it has no effect on the model."
            )


def _has_value(found: Any, value: Any) -> bool:
    if isinstance(found, dict):
        return any(_has_value(each, value) for each in found.values())
    return found == value and isinstance(found, bool) == isinstance(value, bool)


class Relation(Protocol):
    """Some keys of a config.json and the knobs with their meaning."""

    @property
    def names(self) -> tuple[str, ...]:
        """The keys."""
        ...

    def knobs(self, config: Config) -> Knobs:
        """Reads the keys; returns the knobs that they determine."""
        ...

    def keys(self, experiment: Any) -> dict[str, Any]:
        """Returns the keys of an experiment's model."""
        ...


def value_of(experiment: Any, knob: str) -> Any:
    """Returns the value of a knob in an experiment's model, derived if the knob is None."""
    derived = {
        "FFN_DIM": "hidden_dim",
        "NUM_HEADS": "num_heads",
        "NUM_KV_HEADS": "num_kv_heads",
        "HEAD_DIM": "head_dim",
    }
    if knob in derived:
        return getattr(experiment, derived[knob])
    value = getattr(experiment, knob)
    if value is not None:
        return value
    if knob == "NORM_EPSILON":
        return {"rms": 1e-6, "layer": 1e-5}[experiment.NORM]
    return {"CONTEXT_LEN": experiment.SEQ_LEN, "ATTENTION_DROPOUT": experiment.DROPOUT}.get(knob)


@dataclasses.dataclass(frozen=True)
class Same:
    """A key with the value of a knob."""

    name: str
    knob: str
    default: Any = REQUIRED  # transformers' value of a missing key
    kind: type = int
    nullable: bool = False  # whether null is a value of the knob
    least: float | None = None  # smallest value; None for any

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def knobs(self, config: Config) -> Knobs:
        value = config.read(self.name, self.default, self.kind, nullable=self.nullable)
        if self.least is not None and value is not None and value < self.least:
            raise config.refuse(self.name, f"It must be at least {self.least:g}.")
        return {self.knob: value}

    def keys(self, experiment: Any) -> dict[str, Any]:
        value = value_of(experiment, self.knob)
        if isinstance(value, tuple):
            raise UsageError(f"config.json has one {self.name} for all layers (got {self.knob} = {value}).")
        return {self.name: value if value is None else self.kind(value)}


@dataclasses.dataclass(frozen=True)
class Only:
    """A key of which one value is supported, which is also that of a missing key."""

    name: str
    value: Any
    advice: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def knobs(self, config: Config) -> Knobs:
        found = config.read(self.name, self.value, object, nullable=True)
        if found != self.value or isinstance(found, bool) != isinstance(self.value, bool):
            raise config.refuse(self.name, self.advice or f"Only {json.dumps(self.value)} is.")
        return {}

    def keys(self, experiment: Any) -> dict[str, Any]:
        del experiment
        return {}


@dataclasses.dataclass(frozen=True)
class Without:
    """Keys that have no effect on a model's weights and logits."""

    names: tuple[str, ...]

    def knobs(self, config: Config) -> Knobs:
        for name in self.names:
            config.read(name, None, object, nullable=True)
        return {}

    def keys(self, experiment: Any) -> dict[str, Any]:
        del experiment
        return {}


def load(path: str | Path) -> dict[str, Any]:
    """Reads a JSON object from a file, or config.json from a folder.

    Raises:
      UsageError: the file is missing or is not a JSON object.
    """
    file = Path(path)
    file = file / "config.json" if file.is_dir() else file
    try:
        content = parsed(file.read_text())
    except OSError as error:
        raise UsageError(f"'{file}' cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise UsageError(f"'{file}' is not JSON: {error}.") from error
    if not isinstance(content, dict):
        raise UsageError(f"'{file}' is not a JSON object (got a {type(content).__name__}).")
    return content
