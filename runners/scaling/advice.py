"""The best width for a budget of FLOPs by a scaling law, counted and not extrapolated in FLOPs and weights."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from layers.errors import UsageError
from registry.experiment import Experiment
from runners.scaling.ladder import FEWEST_STEPS, Size, size_of
from runners.scaling.law import Law, interval

MOST_MULTIPLES = 4096  # of the unit of widths
MOST_SKIPPED = 16  # multiples in a row that the experiment refuses as widths


def advise(
    experiment: Experiment, law: Law, laws: Sequence[Law], widths: Sequence[int], budgets: Sequence[float]
) -> list[dict[str, Any]]:
    """Returns for each budget the width with the lowest loss by the law, its tokens and updates, and the loss.

    Widths are multiples of the greatest common divisor of those of the ladder. Each that is considered is built, so
    that its weights and FLOPs are those that a run has.

    Args:
      experiment: the entry of the ladder.
      law: the fit.
      laws: the fits of the bootstrap, for the interval of the loss.
      widths: those of the ladder.
      budgets: FLOPs of runs.
    """
    unit = math.gcd(*widths)
    of_multiple = functools.cache(lambda multiple: _next_size(experiment, unit, multiple))
    return [_advice(budget, law, laws, of_multiple) for budget in budgets]


def _next_size(experiment: Experiment, unit: int, multiple: int) -> Size | None:
    """Returns the model whose width is the multiple of the unit, or the next one that the experiment has."""
    for each in range(multiple, multiple + MOST_SKIPPED):
        try:
            return size_of(experiment, each * unit)
        except UsageError:
            continue
    return None


def _advice(budget: float, law: Law, laws: Sequence[Law], of_multiple: Callable[[int], Size | None]) -> dict[str, Any]:
    def loss(multiple: int) -> float:
        size = of_multiple(multiple)
        if size is None or (steps := size.steps(budget)) < FEWEST_STEPS:
            return math.inf
        return law.loss(size.parameters, size.tokens(steps))

    best = _lowest(loss)
    size = of_multiple(best)
    if size is None or loss(best) == math.inf:
        return {"budget": budget, "width": None}
    steps = size.steps(budget)
    tokens = size.tokens(steps)
    return {
        "budget": budget,
        "width": size.width,
        "parameters": size.parameters,
        "tokens": tokens,
        "steps": steps,
        "loss": law.loss(size.parameters, tokens),
        "interval": interval([each.loss(size.parameters, tokens) for each in laws]),
    }


def _lowest(loss: Callable[[int], float]) -> int:
    """Returns the argument from 1 on with the lowest value of a function that falls, then rises."""
    high = 2
    while high < MOST_MULTIPLES and loss(high) < loss(high // 2):
        high *= 2
    low = max(1, high // 4)
    while high - low > 2:
        left, right = low + (high - low) // 3, high - (high - low) // 3
        if loss(left) <= loss(right):
            high = right
        else:
            low = left
    return min(range(low, high + 1), key=loss)
