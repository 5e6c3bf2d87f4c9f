"""Studies: cases of grids, pairs, draws and halving, and their refusals."""

import pytest

from layers.errors import UsageError
from registry.resolve import resolve
from registry.study import Study, Uniform
from registry.values import parse, show

VALUES = {"LEARNING_RATE": (0.001, 0.01), "task.optimizer.beta1": (0.8, 0.9)}


def test_cases():
    pairs = [tuple(case.values()) for case in Study(values=VALUES).settings()]
    assert pairs == [(0.001, 0.8), (0.001, 0.9), (0.01, 0.8), (0.01, 0.9)]
    assert [tuple(case.values()) for case in Study(how="zipped", values=VALUES).settings()] == [
        (0.001, 0.8),
        (0.01, 0.9),
    ]
    assert Study(how="halving", values=VALUES).settings() == Study(values=VALUES).settings()


def test_draws_depend_on_the_seed_alone():
    values = {"LEARNING_RATE": Uniform(1e-4, 1e-1, log=True), "DROPOUT": Uniform(0.0, 0.5), "BETA1": (0.8, 0.9)}
    study = lambda seed: Study(how="random", cases=200, seed=seed, values=values).settings()
    assert study(1) == study(1) != study(2)
    assert study(1)[:50] == Study(how="random", cases=50, seed=1, values=values).settings(), "more cases are added"
    rates = sorted(case["LEARNING_RATE"] for case in study(1))
    assert rates[0] >= 1e-4
    assert rates[-1] <= 1e-1
    assert rates[100] == pytest.approx(3e-3, rel=0.6), "the logarithm is uniform"
    assert {case["BETA1"] for case in study(1)} == {0.8, 0.9}


def test_rungs():
    halving = Study(how="halving", values=VALUES, keep=3, rungs=3)
    assert halving.ends(270) == [30, 90, 270]
    assert halving.cases_of_rungs() == [4, 2, 1]
    assert Study(how="halving", values={"SEED": tuple(range(27))}, keep=3, rungs=3).cases_of_rungs() == [27, 9, 3]
    assert Study(values=VALUES).cases_of_rungs() == [4]
    assert Study(values=VALUES).ends(270) == [270]
    updates = 27 * 30 + 9 * (90 - 30) + 3 * (270 - 90)
    assert updates < 27 * 270 / 2, "27 cases need less than half of the updates of their grid"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"how": "gird"}, "Unknown search 'gird' of a study. Did you mean 'grid'"),
        ({"values": {}}, "A study needs values"),
        ({"values": {"SEED": 3}}, "SEED of a study takes a tuple of values, not 3"),
        ({"values": {"SEED": ()}}, "SEED of a study takes a tuple of values"),
        ({"values": {"DROPOUT": Uniform(0.0, 1.0)}}, "DROPOUT of a study is a range .* Set how='random'"),
        ({"how": "random"}, "cases of a study and how = 'random' need each other"),
        ({"cases": 4}, "cases of a study and how = 'random' need each other"),
        ({"how": "zipped", "values": {"A": (1, 2), "B": (1,)}}, "equally many values"),
        ({"seeds": 0}, "seeds of a study must be at least 1"),
        ({"how": "halving", "keep": 1}, "keep of a study must be at least 2"),
    ],
)
def test_refusals(fields, message):
    with pytest.raises(UsageError, match=message):
        Study(**{"values": VALUES} | fields)


@pytest.mark.parametrize("ends", [(1.0, 1.0), (2.0, 1.0)])
def test_a_range_has_numbers(ends):
    with pytest.raises(UsageError, match="has no numbers"):
        Uniform(*ends)
    with pytest.raises(UsageError, match="above 0 with log"):
        Uniform(0.0, 1.0, log=True)


def test_studies_as_text():
    study = Study(how="random", cases=3, values={"DROPOUT": Uniform(low=0.0, high=0.5), "BETA1": (0.8, 0.9)})
    assert parse(show(study)) == study
    assert study == resolve("tiny.StdlibTiny", [f"STUDY={show(study)}"]).STUDY
