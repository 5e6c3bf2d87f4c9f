"""Best-first search: visits cases by lower bounds of their rank, and skips those that cannot be the best."""

import dataclasses
import heapq
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

C = TypeVar("C")
R = TypeVar("R")
C_contra = TypeVar("C_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)
Rank = tuple[float, ...]
"""Sort key of a case: a smaller one is better. A lower bound bounds each of its numbers."""


@dataclasses.dataclass(frozen=True)
class Excluded:
    """The answer for a case that cannot be chosen."""

    reason: str


class Problem(Protocol[C_contra, R_co]):
    """What is searched."""

    @property
    def bounds(self) -> Sequence[Callable[[C_contra], Rank | Excluded]]:
        """Lower bounds of a case's rank: the cheapest to compute first, the highest last."""
        ...

    def complete(self, case: C_contra) -> tuple[R_co, Rank | Excluded]:
        """Returns a case's result and its rank."""
        ...


@dataclasses.dataclass(frozen=True)
class Outcome(Generic[C, R]):
    """What a search has found."""

    complete: list[tuple[C, R]]  # by rank, the best first, then those that are excluded
    best: tuple[C, R] | None  # None: all cases are excluded
    excluded: list[tuple[C, str]]  # by their bounds, with the reason
    pruned: list[C]  # with a bound above the best rank


def best_first(
    cases: Sequence[C], problem: Problem[C, R], *, exhaustive: bool = False, seen: Callable[[C, R], None] | None = None
) -> Outcome[C, R]:
    """Returns the case of the smallest rank; of equal ones the first in `cases`. The choice is that of an exhaustive
    search, if bounds are lower bounds.

    Args:
      cases: all cases.
      problem: their bounds and ranks.
      exhaustive: complete all cases, without bounds.
      seen: is called after each completed case.
    """
    stages = () if exhaustive else problem.bounds
    queue: list[tuple[Rank, int, int]] = [((), position, 0) for position in range(len(cases))]
    ranked: list[tuple[bool, Rank, int, R]] = []  # is excluded, rank, position, result
    excluded: list[tuple[C, str]] = []
    best: tuple[Rank, int] | None = None
    while queue:
        bound, position, stage = heapq.heappop(queue)
        if best is not None and (bound, position) > best:
            heapq.heappush(queue, (bound, position, stage))
            break
        case = cases[position]
        if stage < len(stages):
            better = stages[stage](case)
            if isinstance(better, Excluded):
                excluded.append((case, better.reason))
            else:
                heapq.heappush(queue, (max(bound, better), position, stage + 1))
            continue
        result, rank = problem.complete(case)
        is_excluded = isinstance(rank, Excluded)
        ranked.append((is_excluded, () if isinstance(rank, Excluded) else rank, position, result))
        if not isinstance(rank, Excluded) and (best is None or (rank, position) < best):
            best = rank, position
        if seen is not None:
            seen(case, result)
    ranked.sort(key=lambda entry: entry[:3])
    complete = [(cases[position], result) for _, _, position, result in ranked]
    pruned = [cases[position] for _, position, _ in sorted(queue, key=lambda entry: entry[1])]
    return Outcome(complete, None if best is None else complete[0], excluded, pruned)
