"""Context parallelism: updates with a split sequence are those of one device, for each mixer and other split."""

import functools
import math

import jax
import numpy as np
import pytest

from layers.errors import UsageError
from registry.templates.decoder import DecoderLm
from runners.session import Session
from tests.support.programs import compiled_anew

SMALL = {
    **{"NUM_LAYERS": 2, "MODEL_DIM": 64, "NUM_HEADS": 4, "VOCAB_SIZE": 64, "SEQ_LEN": 64, "BATCH_SIZE": 4},
    **{
        "LEARNING_RATE": 3e-3,
        "WARMUP_STEPS": 1,
        "LOG_EVERY": 1,
        "DATA": "synthetic",
        "ATTENTION_BLOCK": 4,
        "BLOCK_LEN": 8,
    },
}


def trained(**knobs):
    """Returns losses, and weights after three updates."""
    experiment = DecoderLm.derive(**SMALL | knobs)()
    devices = jax.devices()[: math.prod(experiment.mesh_shape().values())]
    session = Session(experiment, devices)
    with session.placed():
        batches = session.host_batches.iterate(session.train.input)
        batch, _ = next(batches)
        update, state, losses = session.functions.compile_step(batch), session.functions.init(), []
        for _ in range(3):
            state = session.settle(update(state, batch, session.seed))
            losses.append(float(state.sums.loss / state.sums.weight))
            batch, _ = next(batches)
        return np.array(losses), jax.tree.map(np.asarray, state.variables)


@functools.cache
def on_one_device(**knobs):
    return trained(DEVICE_MESH_SHAPE=(1, 1), **knobs)


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
PLACEMENT = {*split(1, 1, 1), "CONTEXT_PARALLEL", "ZERO_STAGE", "LAYOUT", "REMAT"}


@pytest.mark.parametrize(
    "case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
)
def test_updates_are_those_of_one_device(case):
    knobs = CASES[case]
    expected, weights = on_one_device(**{name: value for name, value in knobs.items() if name not in PLACEMENT})
    with compiled_anew():
        losses, others = trained(**knobs)
    np.testing.assert_allclose(losses, expected, rtol=2e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=3e-4), weights, others)


@pytest.mark.slow
def test_experts_on_an_axis_of_their_own():
    axes = ("data", "sequence", "expert", "model")
    mesh = {"MESH_AXES": axes, "DEVICE_MESH_SHAPE": (2, 2, 2, 1), "SEQUENCE_AXIS": "sequence", "LAYOUT": "expert_axis"}
    expected, _ = on_one_device(**EXPERTS)
    with compiled_anew():
        losses, _ = trained(**mesh | EXPERTS)
    np.testing.assert_allclose(losses, expected, rtol=2e-4)


def test_an_axis_that_the_mesh_lacks_is_refused():
    with pytest.raises(UsageError, match=r"SEQUENCE_AXIS = rows is not an axis .* MESH_AXES=data,rows,model"):
        DecoderLm.derive(SEQUENCE_AXIS="rows")().Task()
