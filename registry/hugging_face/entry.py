"""Entries of Hugging Face's models: the family of a class, the knobs that a config.json changes, and equal entries."""

from collections.abc import Iterator, Mapping
from typing import Any

from layers.errors import UsageError
from registry import index
from registry.experiment import Experiment, cls_key
from registry.hugging_face.families import FAMILIES
from registry.hugging_face.family import Family
from registry.hugging_face.keys import Knobs
from registry.hugging_face.representation import differences

# Stated even if the value is that of another knob in the base, because another value of that knob would change it.
KEPT = ("ROTARY_LENGTH", "CONTEXT_LEN")


def family_of(cls: type[Experiment]) -> Family | None:
    """Returns the family whose base a class extends, the closest one of several; None if it extends none."""
    by_base = {family.base: family for family in FAMILIES.values()}
    names = (f"{each.__module__}.{each.__name__}" for each in cls.__mro__)
    return next((by_base[name] for name in names if name in by_base), None)


def stated(family: Family, knobs: Mapping[str, Any]) -> Knobs:
    """Returns the knobs with which a class that extends the family's base is the model of these knobs.

    Values that the base has, or derives from other knobs, are left out. A class whose rows would be longer than the
    model's positions gets shorter rows.
    """
    base = family.base_class()
    found = {name: value for name, value in knobs.items() if value != getattr(base, name)}
    length = knobs.get("CONTEXT_LEN")
    if length is not None and length < base.SEQ_LEN:
        found["SEQ_LEN"] = length
    if base.LOSS_CHUNK is not None and found.get("SEQ_LEN", base.SEQ_LEN) % base.LOSS_CHUNK:
        found["LOSS_CHUNK"] = None
    model = family.config(base.derive(**found)())
    for name in [name for name in found if name in knobs and name not in KEPT]:
        rest = {other: value for other, value in found.items() if other != name}
        if _config(family, rest) == model:
            found = rest
    return found


def _config(family: Family, knobs: Knobs) -> dict[str, Any] | None:
    """Returns the config.json of the base with these knobs; None if they do not go together."""
    try:
        return family.config(family.base_class().derive(**knobs)())
    except UsageError:
        return None


def equal_entries(family: Family, experiment: Experiment) -> Iterator[str]:
    """Yields the names of Vortaro's own entries with the same model, initial values included."""
    from registry.resolve import find

    model, own = family.config(experiment), cls_key(type(experiment))
    for name, entry in index.entries().items():
        if name == own or not entry.module.startswith("registry."):
            continue
        cls = find(name)
        if family_of(cls) is family and family.config(cls()) == model and not any(differences(cls(), family)):
            yield name
