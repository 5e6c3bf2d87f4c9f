"""The space of a search: its dimensions, their values, and which experiments and steps have them."""

import pytest

from layers.errors import UsageError
from layers.remat import REMAT_POLICIES
from registry.resolve import resolve
from runners.planner.search.cases import cases, dimensions


@pytest.fixture(scope="module")
def experiment():
    return resolve("DenseLm8B2x2", ["BATCH_SIZE=12", "ZERO_STAGE=1"], smoke=True)


def test_all_dimensions_in_one_order(experiment):
    assert dimensions(None, experiment, "train") == ["mesh", "batch", "remat", "zero"]
    assert dimensions("zero, mesh", experiment, "train") == ["mesh", "zero"]
    assert dimensions(None, experiment, "decode") == ["mesh"]


def test_the_tokens_of_an_update_stay(experiment):
    found = cases(experiment, 8, ["batch"])
    assert [case.texts["batch"] for case in found] == ["12 x 1", "6 x 2", "4 x 3", "3 x 4", "2 x 6", "1 x 12"]
    made = [case.of(experiment).knobs() for case in found]
    assert {knobs["BATCH_SIZE"] for knobs in made} == {12}
    assert [knobs["GRADIENT_ACCUMULATION"] for knobs in made] == [1, 2, 3, 4, 6, 12]


def test_cases_are_values_of_set(experiment):
    found = cases(experiment, 2, ["mesh", "remat", "zero"])
    assert len(found) == 2 * len(REMAT_POLICIES) * 5
    assert found[0].sets == ["DEVICE_MESH_SHAPE=1,2", "REMAT=none", "ZERO_STAGE=none"]
    assert found[-1].sets == ["DEVICE_MESH_SHAPE=2,1", "REMAT=offload", "ZERO_STAGE=3"]
    knobs = found[0].of(experiment).knobs()
    assert [knobs[name] for name in ("DEVICE_MESH_SHAPE", "REMAT", "ZERO_STAGE")] == [(1, 2), "none", None]


@pytest.mark.parametrize(
    ("over", "step", "message"),
    [
        ("mehs", "train", "Unknown dimension 'mehs' in --over=mehs. Did you mean 'mesh'?"),
        ("mesh,", "train", "Unknown dimension '' in --over=mesh,. Valid: 'batch', 'mesh', 'remat', 'zero'."),
        ("mesh,remat", "decode", "--over=mesh,remat has no effect with --plan_step=decode: a decoding step has no"),
    ],
)
def test_bad_dimensions_are_refused(experiment, over, step, message):
    with pytest.raises(UsageError) as caught:
        dimensions(over, experiment, step)
    assert message in str(caught.value)


def test_a_dimension_whose_knob_is_missing(monkeypatch, experiment):
    monkeypatch.setattr("runners.planner.search.cases.knob_types", lambda cls: {"DEVICE_MESH_SHAPE": tuple})
    assert dimensions(None, experiment, "train") == ["mesh"]
    with pytest.raises(UsageError, match=r"needs the knob ZERO_STAGE, which gshard.DenseLm8B2x2 does not have. Remove"):
        dimensions("mesh,zero", experiment, "train")
