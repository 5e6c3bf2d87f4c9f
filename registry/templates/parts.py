"""Mixers and feed-forward layers by name: the choices of MIXER and FFN, and the knob values that each works with."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import fiddle as fdl

from layers.errors import UsageError, did_you_mean

Maker = Callable[..., fdl.Config | None]
Made = TypeVar("Made", bound=Maker)


@dataclasses.dataclass(frozen=True)
class Part:
    """A choice of MIXER or FFN."""

    make: Maker  # from the experiment of one layer to the config of the part; None without one
    takes: Mapping[str, tuple[Any, ...]]  # knob to the values that it works with; it works with all of other knobs

    def misfits(self, experiment: Any) -> Iterator[tuple[str, Any]]:
        """Yields the knobs, with their values, that the part does not work with."""
        for knob, values in self.takes.items():
            given = getattr(experiment, knob)
            yield from (
                (knob, value) for value in (given if isinstance(given, tuple) else (given,)) if value not in values
            )


MIXERS: dict[str, Part] = {}
FEED_FORWARDS: dict[str, Part] = {}
PARTS = {"MIXER": MIXERS, "FFN": FEED_FORWARDS}  # by knob


def mixer(name: str, **takes: tuple[Any, ...]) -> Callable[[Made], Made]:
    """Registers a function as MIXER = `name`; a decorator.

    The function gets the experiment with the knobs of one layer, and returns the config of a sequence mixer (its state
    interface: layers.block.ResidualBlock). It reads the knobs that act on the mixer and no others, because a knob that
    nothing reads is reported as one without effect.

    Args:
      name: the value of MIXER.
      takes: by knob, the values that the mixer works with; others are refused. For a knob with several values, such as
        BIASES, each of them has to be listed.
    """
    return _registration(MIXERS, "mixer", name, takes)


def feed_forward(name: str, **takes: tuple[Any, ...]) -> Callable[[Made], Made]:
    """Registers a function as FFN = `name`, like `mixer`; its module maps (x, segment_ids) to y."""
    return _registration(FEED_FORWARDS, "feed-forward layer", name, takes)


def part_of(knob: str, experiment: Any) -> fdl.Config | None:
    """Returns the config of the part that a knob of the experiment names.

    Raises:
      UsageError: the name is unknown, or the part does not work with the value of another knob.
    """
    name, parts = getattr(experiment, knob), PARTS[knob]
    if name not in parts:
        raise UsageError(f"{knob} = {name} is unknown. {did_you_mean(name, parts)}")
    for other, value in parts[name].misfits(experiment):
        known = [str(each) for each in parts[name].takes[other]]
        advice = f"Set {other} to {'one of ' * (len(known) > 1)}{', '.join(known)}"
        if isinstance(getattr(experiment, other), tuple):
            advice = f"Remove {value} from {other}"
        raise UsageError(f"{knob} = {name} does not work with {other} = {value}. {advice}.")
    return parts[name].make(experiment)


def _registration(parts: dict[str, Part], kind: str, name: str, takes: Mapping[str, tuple[Any, ...]]) -> Any:
    def register(make: Made) -> Made:
        before = parts.get(name)
        place = lambda made: (made.__module__, made.__qualname__)
        if before is not None and place(before.make) != place(make):
            raise UsageError(f"A {kind} named '{name}' exists ({'.'.join(place(before.make))}). Choose another name.")
        parts[name] = Part(make, takes)
        return make

    return register
