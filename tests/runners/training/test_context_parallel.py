"""Context parallelism: updates with a split sequence are those of one device, for each mixer and other split."""

import pytest

from layers.errors import UsageError
from registry.templates.decoder import DecoderLm
from tests.support.split_updates import assert_updates_of_one_device, but_slow


def split(data, sequence, model, **knobs):
    mesh = {"MESH_AXES": ("data", "sequence", "model"), "DEVICE_MESH_SHAPE": (data, sequence, model)}
    return mesh | {"SEQUENCE_AXIS": "sequence"} | knobs


EXPERTS = {"FFN": "experts", "SECOND_EXPERT": "all", "NUM_GROUPS": 8}
CASES = {
    "ring": split(2, 2, 2, CONTEXT_PARALLEL="ring"),
    "ring of eight": split(1, 8, 1, CONTEXT_PARALLEL="ring"),
    "all-gather": split(2, 4, 1, CONTEXT_PARALLEL="all_gather"),
    "all-to-all": split(1, 4, 1, CONTEXT_PARALLEL="all_to_all"),
    "window": split(2, 2, 2, ATTENTION_WINDOW=12, NUM_KV_HEADS=2),
    "ZeRO 1": split(4, 2, 1, ZERO_STAGE=1),
    "ZeRO 3 and heads": split(2, 2, 2, ZERO_STAGE=3),
    "experts": split(2, 2, 2, **EXPERTS),
    "experts without slots": split(2, 2, 2, **EXPERTS, CAPACITY_FACTOR=None),
    "masked": split(2, 4, 1, OBJECTIVE="masked", VOCAB_SIZE=256),
    "vq": split(2, 2, 2, MIXER="vq", POSITIONS="distance"),
    "distance": split(2, 2, 2, MIXER="distance", POSITIONS="distance"),
    "static_sgu": split(2, 2, 2, MIXER="static_sgu"),
}
QUICK = ("ring", "ZeRO 3 and heads")


@pytest.mark.parametrize("case", but_slow(CASES, QUICK))
def test_updates_are_those_of_one_device(case):
    assert_updates_of_one_device(CASES[case])


@pytest.mark.slow
def test_experts_on_an_axis_of_their_own():
    axes = ("data", "sequence", "expert", "model")
    mesh = {"MESH_AXES": axes, "DEVICE_MESH_SHAPE": (2, 2, 2, 1), "SEQUENCE_AXIS": "sequence", "LAYOUT": "expert_axis"}
    assert_updates_of_one_device(mesh | EXPERTS)


def test_an_axis_that_the_mesh_lacks_is_refused():
    with pytest.raises(UsageError, match=r"SEQUENCE_AXIS = rows: 'rows' is not an axis .* MESH_AXES=data,rows,model"):
        DecoderLm.derive(SEQUENCE_AXIS="rows")().Task()
