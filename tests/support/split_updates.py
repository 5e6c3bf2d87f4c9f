"""A few updates of a small model on any mesh, for tests that a split changes no number."""

import functools
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import jax
import numpy as np
import pytest

from registry.templates.decoder import DecoderLm
from runners.session import Session
from tests.support.programs import compiled_anew

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


# Knobs that split a model, or the order in which it is computed: one device has the same numbers without them.
PLACEMENT = {
    *("MESH_AXES", "DEVICE_MESH_SHAPE", "LAYOUT", "SEQUENCE_AXIS", "CONTEXT_PARALLEL", "ZERO_STAGE", "STACK"),
    *("PIPELINE_REPEATS", "PIPELINE_MICROBATCHES", "GRADIENT_ACCUMULATION", "REMAT", "UNROLL"),
}


def assert_updates_of_one_device(knobs: Mapping[str, Any]) -> None:
    """Asserts that updates on the mesh of the knobs are those of one device: losses, and weights after them."""
    expected = on_one_device(**{name: value for name, value in knobs.items() if name not in PLACEMENT})
    with compiled_anew():
        assert_same(expected, trained(**knobs))


def but_slow(cases: Iterable[str], quick: Collection[str]) -> list[Any]:
    """Returns the cases as parameters of a test, with the mark `slow` except for the quick ones."""
    return [case if case in quick else pytest.param(case, marks=pytest.mark.slow) for case in cases]


def assert_same(one: tuple[np.ndarray, Any], other: tuple[np.ndarray, Any]) -> None:
    """Asserts equal losses and weights."""
    np.testing.assert_allclose(one[0], other[0], rtol=2e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=3e-4), one[1], other[1])
