"""Small variants of experiments: tables of knob values, merged along the base classes."""

import dataclasses
from typing import Any

from registry.experiment import Experiment


@dataclasses.dataclass(frozen=True)
class IfOn:
    """A value that replaces the knob's, unless the knob is off (None, false or 0)."""

    value: Any


def smoke_knobs(cls: type[Experiment]) -> dict[str, Any]:
    """Returns the knobs of the small variant: those in `smoke_table` of the class and its bases."""
    table: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        table |= vars(base).get("smoke_table", {})
    is_on = lambda name: getattr(cls, name) not in (None, False, 0)
    return {
        name: value.value if isinstance(value, IfOn) else value
        for name, value in table.items()
        if not isinstance(value, IfOn) or is_on(name)
    }
