"""ZeRO: updates are those of the same experiment without it, and bad requests are refused."""

import functools
import re

import jax
import numpy as np
import pytest

from layers.errors import UsageError
from layers.specs import P, Specs
from registry.build import build
from registry.checks import check
from registry.experiments.gshard import MoeLm8x2B
from registry.resolve import resolve
from runners.session import Session
from tasks.zero import placed_table
from tests.support.references.zero import NARROW, UNEVEN, Sheet


def trained(stage, steps=3, base=Sheet, **knobs):
    """Losses and weights after a few updates."""
    session = Session(base.derive(ZERO_STAGE=stage, LOG_EVERY=1, **knobs)())
    with session.placed():
        batches = session.host_batches.iterate(session.train.input)
        batch, _ = next(batches)
        update, state, losses = session.functions.compile_step(batch), session.functions.init(), []
        for _ in range(steps):
            state = session.settle(update(state, batch, session.seed))
            losses.append(float(state.sums.loss / state.sums.weight))
            batch, _ = next(batches)
        metrics = session.functions.metrics_of(state.variables, batch)
        losses.append(float(metrics.loss / metrics.weight))
        # As sampling and export see the weights, whose exchanges are the compiler's.
        plain = jax.jit(lambda v: session.task.loss(v, batch)[1].metrics)(state.variables)
        losses.append(float(plain.loss / plain.weight))
        return np.array(losses), jax.tree.map(np.asarray, (state.variables, state.optimizer))


SMALL = {
    "LEARNING_RATE": 3e-3,
    "NUM_LAYERS": 2,
    "MODEL_DIM": 32,
    "NUM_HEADS": 8,
    "VOCAB_SIZE": 64,
    "SEQ_LEN": 32,
    "BATCH_SIZE": 8,
}


@pytest.fixture(scope="module")
def data_parallel():
    """The losses and weights of data parallelism, which all stages are compared with."""
    return trained(0, **SMALL)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_same_bits_as_data_parallelism(stage, data_parallel):
    (expected, weights), (losses, others) = data_parallel, trained(stage, **SMALL)
    assert losses.tolist() == expected.tolist()
    jax.tree.map(np.testing.assert_array_equal, weights, others)


VARIANTS = {
    "head-QK": ({"HEAD_QK": 16}, None),
    "accumulated": (
        {"GRADIENT_ACCUMULATION": 4, "BATCH_SIZE": 32, "CLIP_NORM": 0.1, "CLIP_VALUE": None, "REMAT": "dots"},
        None,
    ),
    "adafactor": ({"OPTIMIZER": "adafactor", "CLIP_VALUE": None, "MODEL_DIM": 128, "NUM_HEADS": 8}, None),
    "lion": ({"OPTIMIZER": "lion", "LEARNING_RATE": 1e-4}, None),
    "muon, weights not trained": (
        {
            "OPTIMIZER": "muon",
            "OPTIMIZERS": {"embedding": "none", "key_mkd": "none"},
            "DEVICE_MESH_SHAPE": (4, 2),
            "CLIP_VALUE": None,
        },
        None,
    ),
    "heads split": ({"DEVICE_MESH_SHAPE": (4, 2)}, None),
    "heads split, rows by two and in pieces": ({"DEVICE_MESH_SHAPE": (2, 4), "TBPTT_LEN": 8}, None),
    "fully sharded by its table": ({"LAYOUT": "fully_sharded"}, None),
    "rows that do not divide": (UNEVEN, None),
    "narrow": ({**NARROW, "MASTER_WEIGHTS": True, "DTYPE": "bfloat16"}, 1e-3),
}


# Stage 3 includes the exchanges of the others; a few variants cover their differences from it.
LESS = (
    "accumulated",
    "rows that do not divide",
    "heads split",
    "fully sharded by its table",
    "muon, weights not trained",
)


@functools.cache
def without(name):
    """Results of a variant without ZeRO, with the compiler's exchanges."""
    return trained(None, **SMALL | VARIANTS[name][0])


@pytest.mark.parametrize(
    ("name", "stage"),
    [(n, 3) for n in VARIANTS]
    + [pytest.param(n, stage, marks=pytest.mark.slow) for n in VARIANTS if n in LESS for stage in (1, 2)],
)
def test_on_top_of_anything(name, stage):
    """The losses of the same experiment without ZeRO."""
    knobs, tolerance = VARIANTS[name]
    (expected, weights), (losses, others) = without(name), trained(stage, **SMALL | knobs)
    np.testing.assert_allclose(losses, expected, rtol=tolerance or 2e-5)
    if tolerance is None and name != "lion":  # whose steps are signs
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), weights, others)


@pytest.mark.parametrize("name", ["vq.VQStdlib", "wiki_bert.MLPerfBertDense13B32x32"])
def test_any_family(name):
    knobs = [f"DEVICE_MESH_SHAPE={(4, 2) if len(resolve(name).MESH_AXES) == 2 else (4, 1, 2)}", "LOG_EVERY=1"]
    losses = []
    for stage in ("none", "3"):
        experiment = resolve(name, [*knobs, f"ZERO_STAGE={stage}"], smoke=True)
        losses.append(trained(experiment.ZERO_STAGE, base=type(experiment))[0])
    np.testing.assert_allclose(*losses, rtol=2e-4)


def test_dropout_differs_between_devices():
    """Equal rows on all devices would have equal gradients, were their masks the same."""
    session = Session(Sheet.derive(**SMALL | {"DROPOUT": 0.5, "VOCAB_SIZE": 256})())
    found = set()
    with session.placed():
        batch, _ = next(session.host_batches.iterate(session.train.input))
        batch = jax.tree.map(lambda x: x[:1].repeat(8, 0), batch)
        for rows in (1, 8):
            cut = batch.replace(weights=batch.weights.at[rows:].set(0))
            state = session.functions.compile_step(cut)(session.functions.init(), cut, session.seed)
            found.add(round(float(state.sums.loss / state.sums.weight), 6))
    assert len(found) == 2


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        (
            {"WEIGHTS": Specs(ffn_in_mf=P(None, ("data", "model"))), "DEVICE_MESH_SHAPE": (4, 2)},
            "WEIGHTS.ffn_in_mf = P(None, ('data', 'model')) splits one dimension over ZERO_AXIS = data and another",
        ),
        ({"ZERO_STAGE": 4}, "ZERO_STAGE must be 0, 1, 2, 3 or none (got 4)"),
        ({"ZERO_AXIS": "dta"}, "ZERO_AXIS = dta is not an axis of the mesh. Did you mean 'data'"),
        ({"ZERO_AXIS": "model"}, "ZERO_AXIS = model must split the rows of the batch"),
    ],
)
def test_bad_requests(knobs, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        Session(Sheet.derive(**knobs)())


Experts = MoeLm8x2B.Smoke()
EXPERTS = {
    "NUM_LAYERS": 2,
    "SECOND_EXPERT": "all",  # no random numbers, which each device has of its own
    "AUX_LOSS": 0.1,
    "ROUTER_Z_LOSS": 0.1,
    "CAPACITY_FACTOR": 1.0,  # groups of other sizes would drop other tokens
    "OPTIMIZER": "adamw",
    "WARMUP_STEPS": 0,
    "LEARNING_RATE": 1e-3,
    "LOSS_NORMALIZER": "positions",
}


def update_of_experts(stage, shape, **knobs):
    """Metrics and weights of one update, as numbers."""
    experiment = Experts.derive(**EXPERTS, ZERO_STAGE=stage, DEVICE_MESH_SHAPE=shape, **knobs)()
    session = Session(experiment)
    with session.placed():
        batch, _ = next(session.host_batches.iterate(session.train.input))
        state = session.settle(session.functions.compile_step(batch)(session.functions.init(), batch, session.seed))
    return jax.tree.map(np.asarray, (state.sums, state.variables))


def same_update(found, expected):
    (sums, variables), (expected, weights) = found, expected
    assert expected.reports["router_dropped"] > 0
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5), sums, expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), variables, weights)


@pytest.fixture(scope="module")
def experts_without_zero():
    return update_of_experts(None, (8, 1))


@pytest.mark.parametrize(("stage", "shape"), [(1, (8, 1)), (2, (4, 2)), (3, (8, 1))])
def test_experts_stay_where_they_are(stage, shape, experts_without_zero):
    """Losses, statistics of routing and new weights are those of the compiler's exchanges, on any number of devices."""
    same_update(update_of_experts(stage, shape), experts_without_zero)


@pytest.mark.slow
def test_experts_of_accumulated_gradients():
    knobs = {
        "GRADIENT_ACCUMULATION": 2,
        "BATCH_SIZE": 8,
        "FFN": ("gated_experts", "gated"),
        "ROUTING": "expert_choice",
    }
    same_update(*(update_of_experts(stage, (4, 2), **knobs) for stage in (3, None)))


def test_experts_keep_their_spec():
    """Whatever the stage; the rest is split as that of any model."""
    task = build(Experts.derive(ZERO_STAGE=3)().Task(), "task")
    for row, placed in zip(task.weight_table(), placed_table(task, {"data": 8, "model": 1}), strict=True):
        of_experts = row.key.startswith("expert_")
        assert placed.is_local == of_experts
        assert (placed.spec == placed.slot_spec == row.spec) if of_experts else "data" in placed.spec


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        (
            {"NUM_GROUPS": 4},
            "The 8 devices of mesh axis 'data', which work on their own rows, must divide num_groups = 4",
        ),
        (
            {"WEIGHTS": Specs(expert_out_efm=P(None, "model", "data"))},
            "'data' splits the experts of WEIGHTS.expert_in_emf, but not those of WEIGHTS.expert_out_efm",
        ),
    ],
)
def test_bad_requests_of_experts(knobs, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        check(Experts.derive(ZERO_STAGE=1, **knobs)(), {"data": 8, "model": 1})
