"""Context parallelism: updates with a split sequence are those of one device, for every mixer and with all other splits."""

import functools
import math

import jax
import numpy as np
import pytest

from registry.templates.decoder import DecoderLm
from runners.session import Session

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


@pytest.mark.parametrize("exchange", ["ring", "all_gather", "all_to_all"])
@pytest.mark.parametrize("parts", [2, 4, 8])
def test_updates_are_those_of_one_device(exchange, parts):
    heads = {"NUM_HEADS": 8}
    expected, weights = on_one_device(**heads)
    losses, others = trained(**split(1, parts, 1, CONTEXT_PARALLEL=exchange, **heads))
    np.testing.assert_allclose(losses, expected, rtol=2e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), weights, others)
