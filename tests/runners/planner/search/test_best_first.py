"""Best-first search on costs that are stated: its choice is that of an exhaustive search, with fewer completions."""

import random

import pytest

from runners.planner.search.best_first import Excluded, best_first


class Costs:
    """A problem whose ranks and bounds are stated, by case."""

    def __init__(self, ranks, *bounds):
        self.ranks, self.given, self.completed, self.bounded = ranks, bounds, [], []

    @property
    def bounds(self):
        return [self._bound(stage) for stage in range(len(self.given))]

    def _bound(self, stage):
        def bound(case):
            self.bounded.append((stage, case))
            return self.given[stage][case]

        return bound

    def complete(self, case):
        self.completed.append(case)
        return f"result of {case}", self.ranks[case]


@pytest.mark.parametrize("seed", range(20))
def test_the_choice_is_that_of_an_exhaustive_search(seed):
    draw = random.Random(seed)
    names = list("abcdefghijklmnop")
    ranks = {name: (draw.randint(1, 5), draw.randint(5, 9)) for name in names}
    ranks |= {name: Excluded("too large") for name in names if draw.random() < 0.3}
    most = {name: (1, 5) if isinstance(rank, Excluded) else rank for name, rank in ranks.items()}
    second = {name: (draw.randint(1, most[name][0]), draw.randint(1, most[name][1])) for name in names}
    first = {name: (draw.randint(0, a), draw.randint(0, b)) for name, (a, b) in second.items()}
    first |= {name: Excluded("by its bound") for name in names if ranks[name] == Excluded("too large") and seed % 2}
    found = best_first(names, Costs(ranks, first, second))
    all_of_them = best_first(names, Costs(ranks, first, second), exhaustive=True)
    assert found.best == all_of_them.best
    assert len(all_of_them.complete) == len(names)
    assert {case for case, _ in found.complete} | {c for c, _ in found.excluded} | set(found.pruned) == set(names)
    assert len(found.complete) + len(found.excluded) + len(found.pruned) == len(names)


def test_only_cases_that_may_win_are_completed():
    ranks = {"a": (5.0,), "b": (3.0,), "c": (4.0,), "d": (9.0,)}
    problem = Costs(ranks, {"a": (4.0,), "b": (2.0,), "c": (1.0,), "d": (8.0,)})
    found = best_first(list("abcd"), problem)
    assert problem.completed == ["c", "b"]
    assert found.best == ("b", "result of b")
    assert found.pruned == ["a", "d"]


def test_costly_bounds_are_computed_only_where_cheap_ones_do_not_decide():
    ranks = {"a": (1.0,), "b": (9.0,)}
    problem = Costs(ranks, {"a": (0.0,), "b": (5.0,)}, {"a": (1.0,), "b": (8.0,)})
    best_first(["a", "b"], problem)
    assert problem.bounded == [(0, "a"), (0, "b"), (1, "a")]
    assert problem.completed == ["a"]


def test_of_equal_ranks_the_first_case_is_chosen_and_the_second_not_completed():
    problem = Costs({"a": (1.0,), "b": (1.0,)}, {"a": (1.0,), "b": (1.0,)})
    assert best_first(["a", "b"], problem).best == ("a", "result of a")
    assert problem.completed == ["a"]


def test_a_bound_that_excludes_saves_the_completion():
    problem = Costs({"a": (1.0,), "b": (2.0,)}, {"a": Excluded("over the capacity"), "b": (0.0,)})
    found = best_first(["a", "b"], problem)
    assert found.excluded == [("a", "over the capacity")]
    assert problem.completed == ["b"]


def test_nothing_fits():
    problem = Costs({"a": Excluded("too large"), "b": Excluded("too large")}, {"a": (1.0,), "b": (0.0,)})
    found = best_first(["a", "b"], problem)
    assert found.best is None
    assert sorted(problem.completed) == ["a", "b"]


def test_a_bound_above_the_rank_would_be_noticed():
    """The property test above fails for bounds that are none."""
    ranks = {"a": (1.0,), "b": (2.0,)}
    assert best_first(["a", "b"], Costs(ranks, {"a": (3.0,), "b": (0.0,)})).best == ("b", "result of b")
