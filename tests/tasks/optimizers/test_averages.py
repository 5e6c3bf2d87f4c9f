"""Averages of weights: their values, that evaluation reads them, and that they are split and saved like weights."""

import jax
import numpy as np
import optax
import pytest
from optax import contrib

from layers.errors import UsageError
from registry.checks import check
from registry.resolve import resolve
from runners.session import Session
from tasks.train_step import evaluated_variables
from tests.support.references.models import Small, task_of, train_losses, variables_of

MASTER = {"PARAM_DTYPE": "bfloat16", "MASTER_WEIGHTS": True, "DTYPE": "bfloat16"}
FREE = {"SCHEDULE_FREE": True, "SCHEDULE": "constant"}


def updated(task, steps):
    """Weights after each of the first updates by made-up gradients, and the optimizer's state after the last."""
    table, params = task.weight_table(), variables_of(task)["params"]
    optimizer = task.optimizer.build(table)
    state, found = optimizer.init(params), []
    for step in range(steps):
        gradient = jax.tree.map(lambda w, step=step: np.sin(40 * w + step).astype(np.float32), params)
        updates, state = optimizer.update(gradient, state, jax.tree.map(lambda w: w.astype(np.float32), params))
        params = optax.apply_updates(params, updates)
        found.append(params)
    return found, state


@pytest.mark.parametrize("knobs", [{}, MASTER])
def test_an_exponential_average_of_the_weights(knobs):
    task = task_of(EMA_DECAY=0.3, LEARNING_RATE=0.1, **knobs)
    weights, state = updated(task, 5)
    average = jax.tree.map(lambda w: np.asarray(w, np.float64), variables_of(task)["params"])
    for t, moved in enumerate(weights):
        d = min(0.3, (1 + t) / (10 + t))
        average = jax.tree.map(lambda a, w, d=d: d * a + (1 - d) * np.asarray(w, np.float64), average, moved)
    tolerance = 1e-2 if knobs else 1e-6  # weights are rounded, and their masters are averaged
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=tolerance), state.weights, average)
    found = task.optimizer.evaluated(weights[-1], state)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(found)} == {knobs.get("PARAM_DTYPE", "float32")}


def test_schedule_free_is_that_of_optax():
    task = task_of(**FREE, LEARNING_RATE=0.01, WARMUP_STEPS=3, WEIGHT_DECAY=0.0, CLIP_NORM=None, ADAM_EPSILON=1e-8)
    weights, state = updated(task, 6)
    rate = lambda step: 0.01 * np.minimum(1.0, (step + 1) / 3)
    rms = optax.scale_by_rms(0.95, 1e-8, eps_in_sqrt=False, bias_correction=True)
    base = optax.chain(rms, optax.scale_by_learning_rate(rate))
    reference = contrib.schedule_free(base, lambda count: rate(count - 1), b1=0.9)
    params = variables_of(task)["params"]
    expected = reference.init(params)
    for step in range(6):
        gradient = jax.tree.map(lambda w, step=step: np.sin(40 * w + step).astype(np.float32), params)
        updates, expected = reference.update(gradient, expected, params)
        params = optax.apply_updates(params, updates)
    same = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    jax.tree.map(same, weights[-1], params)
    averaged = task.optimizer.evaluated(weights[-1], state)
    jax.tree.map(same, averaged, contrib.schedule_free_eval_params(expected, params))
    assert any(not np.allclose(a, b) for a, b in zip(*map(jax.tree.leaves, (averaged, params)), strict=True))


def test_schedule_free_averages_masters():
    """The steps of the average become too small for bfloat16; masters are those of float32 weights."""
    fields = {"LEARNING_RATE": 0.01, "WEIGHT_DECAY": 0.0, "CLIP_NORM": None, **FREE}
    task, narrow = task_of(**fields), task_of(**fields, **MASTER)
    averaged = []
    for each in (task, narrow):
        weights, state = updated(each, 8)
        averaged.append(each.optimizer.evaluated(weights[-1], state))
        assert state.weight_sum.dtype == "float32" if each is task else state.inner.weight_sum.dtype == "float32"
    close = lambda a, b: np.testing.assert_allclose(a, np.asarray(b, np.float32), atol=0.02)
    jax.tree.map(close, *averaged)


@pytest.mark.parametrize("knobs", [{"EMA_DECAY": 0.9}, FREE], ids=["average", "schedule-free"])
def test_evaluation_reads_the_average(knobs):
    frozen = {"OPTIMIZERS": {"embedding": "none"}}
    task = task_of(**knobs, **frozen)
    _, state = train_losses(3, **knobs, **frozen)
    variables = evaluated_variables(task, state)
    moved = jax.tree.map(lambda a, b: not np.array_equal(a, b), state.variables["params"], variables["params"])
    assert not moved["embedding"]["embedding_vm"]
    assert moved["stack"]["block"]["ffn"]["ffn_in_mf"]


@pytest.mark.parametrize("knobs", [["EMA_DECAY=0.9"], ["SCHEDULE_FREE=true", "SCHEDULE=constant"]])
def test_an_average_is_split_like_its_weight(knobs):
    session = Session(resolve("zero.ZeroTestStage3", [*knobs, "DEVICE_MESH_SHAPE=8,1", "NUM_LAYERS=2"]))
    with session.placed():
        state = session.settle(session.functions.init())
        variables = session.settle(session.functions.evaluated(state))
    rows = {row.path: row for row in session.table}
    slots = {row.path for row, leaf, spec in session.task.optimizer.slots(session.table, state.optimizer) if row}
    assert slots == {path for path in rows if path.startswith("params/")}
    specs = lambda tree: [leaf.sharding.spec for leaf in jax.tree.leaves(tree)]
    assert specs(variables) == specs(state.variables)
    kernel = lambda tree: tree["stack"]["block"]["ffn"]["ffn_in_mf"]
    average = state.optimizer.weights if knobs[0].startswith("EMA") else state.optimizer.z
    assert kernel(average).addressable_shards[0].data.size == kernel(average).size / 8


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"EMA_DECAY": 1.0}, r"EMA_DECAY must be between 0 and 1 \(got 1.0\)"),
        (
            {"SCHEDULE_FREE": True},
            "SCHEDULE_FREE replaces a falling learning rate .*got SCHEDULE = cosine.* SCHEDULE=con",
        ),
        ({**FREE, "OPTIMIZER": "muon"}, "SCHEDULE_FREE does not work with OPTIMIZER = muon"),
        ({**FREE, "MOMENT_DTYPE": "int8"}, "SCHEDULE_FREE has no first moment .got MOMENT_DTYPE = int8"),
        ({**FREE, "OPTIMIZERS": {"hidden": "lion"}}, "SCHEDULE_FREE does not work with OPTIMIZERS.hidden = lion"),
        ({**FREE, "PARAM_DTYPE": "bfloat16"}, "SCHEDULE_FREE needs float32 weights, .* Set MASTER_WEIGHTS=true"),
        ({**FREE, "EMA_DECAY": 0.9}, "evaluates an average of its own .got EMA_DECAY = 0.9.. Set EMA_DECAY=none"),
    ],
)
def test_bad_requests(knobs, message):
    with pytest.raises(UsageError, match=message):
        check(Small.derive(**knobs)())
