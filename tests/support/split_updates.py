"""A few updates of a small model on any mesh, for tests that a split changes no number."""

import functools
import math
from typing import Any

import jax
import numpy as np

from registry.templates.decoder import DecoderLm
from runners.session import Session

SMALL: dict[str, Any] = {
    **{"NUM_LAYERS": 2, "MODEL_DIM": 64, "NUM_HEADS": 4, "VOCAB_SIZE": 64, "SEQ_LEN": 64, "BATCH_SIZE": 4},
    **{"LEARNING_RATE": 3e-3, "WARMUP_STEPS": 1, "LOG_EVERY": 1, "DATA": "synthetic"},
    **{"ATTENTION_BLOCK": 4, "BLOCK_LEN": 8},
}


def trained(**knobs: Any) -> tuple[np.ndarray, Any]:
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
def on_one_device(**knobs: Any) -> tuple[np.ndarray, Any]:
    """Returns the losses and weights of an unsplit model."""
    return trained(DEVICE_MESH_SHAPE=(1, 1), **knobs)


def assert_same(one: tuple[np.ndarray, Any], other: tuple[np.ndarray, Any]) -> None:
    """Asserts equal losses and weights."""
    np.testing.assert_allclose(one[0], other[0], rtol=2e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=3e-4), one[1], other[1])
