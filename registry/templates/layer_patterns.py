"""Patterns over layers: knobs with one value per layer, and the repeated units that a stack is compiled from."""

import copy
import math
from collections.abc import Sequence
from typing import Any

from layers.errors import UsageError
from registry.experiment import Experiment, knob_types
from registry.values import is_per_layer

MOST_LAYERS = 10_000  # of a model: the search for repetitions takes time and memory in proportion to the square
LONGEST_UNIT = 8  # layers of a pattern that is always compiled as written; longer ones are searched for repetitions

Kind = dict[str, Any]  # the knobs with a pattern, with their values in one layer


def patterns(cls: type[Experiment]) -> dict[str, tuple[Any, ...]]:
    """Returns the knobs whose value is a pattern over layers."""
    per_layer = (name for name, hint in knob_types(cls).items() if is_per_layer(hint))
    return {name: value for name in per_layer if isinstance(value := getattr(cls, name), tuple)}


def period(cls: type[Experiment]) -> int:
    """Returns the number of layers after which all patterns repeat."""
    return math.lcm(*[len(pattern) for pattern in patterns(cls).values()])


def kinds(cls: type[Experiment], num_layers: int) -> list[Kind]:
    """Returns the kind of each layer.

    Raises:
      UsageError: a pattern is empty, or longer than the number of layers; there are more than MOST_LAYERS.
    """
    if num_layers > MOST_LAYERS:
        raise UsageError(f"NUM_LAYERS must be at most {MOST_LAYERS:,} (got {num_layers:,}). Choose fewer layers.")
    found = patterns(cls)
    for name, pattern in found.items():
        if not 0 < len(pattern) <= num_layers:
            raise UsageError(
                f"{name} has a pattern of {len(pattern)} layers, but NUM_LAYERS is {num_layers} (got {pattern}). "
                f"Change one of them."
            )
    return [{name: pattern[i % len(pattern)] for name, pattern in found.items()} for i in range(num_layers)]


def of_layer(experiment: Any, kind: Kind) -> Any:
    """Returns the experiment with the knobs of one layer in place of patterns."""
    view = copy.copy(experiment)
    view.__dict__.update(kind)
    return view


def segments(of_layers: Sequence[Kind], period: int) -> list[tuple[list[Kind], int]]:
    """Returns repeated units of layers, as pairs of unit and repetitions, whose sequence is `of_layers`.

    A pattern of up to LONGEST_UNIT layers that repeats, if only in part, is the unit, followed by what remains. Longer
    patterns, and those that state every layer, are cut such that the units, which are compiled, have the fewest layers
    in total, and then into the fewest segments: with the pattern as the unit, or with shorter units inside of it.
    """
    repeats = len(of_layers) // period
    if not repeats:
        return _shortest(of_layers)
    remainder = of_layers[repeats * period :]
    by_pattern = [(list(of_layers[:period]), repeats), *(_shortest(remainder) if remainder else [])]
    if period <= LONGEST_UNIT and len(of_layers) > period:
        return by_pattern
    return min(by_pattern, _shortest(of_layers), key=lambda cut: (sum(len(unit) for unit, _ in cut), len(cut)))


def shortened(cls: Any, num_layers: int, units: int = 2) -> dict[str, Any]:
    """Returns knobs with which a model has fewer layers and the same segments.

    Args:
      cls: the experiment.
      num_layers: layers of a model without patterns; a model whose patterns repeat has at least as many.
      units: how often patterns repeat. If they state every layer, each repeated part is there at most twice.
    Raises:
      UsageError: a pattern is empty, or longer than the number of layers; there are more than MOST_LAYERS.
    """
    length, now = period(cls), cls.NUM_LAYERS
    if length == 1:
        return {"NUM_LAYERS": num_layers}
    if 2 * length <= now:
        return {"NUM_LAYERS": max(num_layers, units * length + (now % length if 2 * length < now else 0))}
    cut = segments(kinds(cls, now), length)
    of_layers = [kind for unit, repeats in cut for kind in unit * min(repeats, 2)]
    return {"NUM_LAYERS": len(of_layers)} | {name: tuple(kind[name] for kind in of_layers) for name in patterns(cls)}


def _shortest(of_layers: Sequence[Kind]) -> list[tuple[list[Kind], int]]:
    best: list[tuple[int, list[tuple[list[Kind], int]]]] = [(0, [])]  # of the last layers: 0, 1, 2, ...
    total = len(of_layers)
    for start in range(total - 1, -1, -1):
        choices = []
        for size in range(1, min(LONGEST_UNIT, total - start) + 1):
            unit, repeats = list(of_layers[start : start + size]), 1
            while True:
                rest, following = best[total - start - repeats * size]
                choices.append((size + rest, 1 + len(following), [(unit, repeats), *following]))
                after = start + repeats * size
                if list(of_layers[after : after + size]) != unit:
                    break
                repeats += 1
        cost, _, cut = min(choices, key=lambda choice: choice[:2])
        best.append((cost, cut))
    return best[total][1]
