"""ZeRO: what a device stores, what devices exchange and where, and that nothing else changes."""

import collections
import functools
import itertools
import math
import re

import jax
import numpy as np
import pytest

from layers.errors import UsageError
from layers.specs import P, Specs
from registry.build import build
from registry.checks import check
from registry.experiments.gshard import MoeLm8x2B
from registry.experiments.zero import ZeroLm
from registry.resolve import resolve
from registry.snapshot import weight_summary
from registry.templates.gpt_lm import GptLm
from runners.planner.hlo import exchanges
from runners.session import Session
from tasks.zero import placed_table

MESHES = ((8, 1), (4, 2), (2, 4), (1, 8))


class Sheet(ZeroLm):
    """The model of the reference measurements: 3,683,840 weights."""

    DEVICE_MESH_SHAPE = (8, 1)
    NUM_LAYERS = 4
    MODEL_DIM = 256
    NUM_HEADS = 8
    VOCAB_SIZE = 2048
    USE_BIAS = True
    SEQ_LEN = 64
    BATCH_SIZE = 16
    DROPOUT = 0.0
    DATA = "synthetic"
    DTYPE = "float32"
    SCHEDULE = "constant"
    WARMUP_STEPS = 0


WEIGHTS = 3_683_840
RECIPES = {  # knobs, bytes of weight, gradient and optimizer per weight, and what the reference reports per stage
    "fp32": ({}, (4, 4, 8), (58_941_444, 33_154_564, 20_261_124, 7_367_684)),
    "bf16": (
        {"MOMENT_DTYPE": "bfloat16", "SECOND_MOMENT_DTYPE": "bfloat16"},
        (2, 2, 4),
        (29_470_724, 16_577_284, 10_130_564, 3_683_844),
    ),
    "bf16, mu fp32": (
        {"SECOND_MOMENT_DTYPE": "bfloat16"},
        (2, 2, 6),
        (36_838_404, 17_498_244, 11_051_524, 4_604_804),
    ),
    "bf16, mu and nu fp32": ({}, (2, 2, 8), (44_206_084, 18_419_204, 11_972_484, 5_525_764)),
    "bf16, master": ({"MASTER_WEIGHTS": True}, (2, 2, 12), (58_941_444, 20_261_124, 13_814_404, 7_367_684)),
}
NARROW = {"PARAM_DTYPE": "bfloat16", "GRADIENT_DTYPE": "bfloat16"}


def with_recipe(name, **knobs):
    recipe = RECIPES[name][0]
    return Sheet.derive(**knobs, **recipe, **({} if name == "fp32" else NARROW))


@pytest.mark.parametrize("name", RECIPES)
def test_bytes_of_the_table(name):
    """(Wp + Wg + Wo) n with the parts that the stage splits over M devices, leaf by leaf."""
    task = build(with_recipe(name)().Task(), "task")
    for stage, mesh in itertools.product(range(4), MESHES):
        sizes = {"data": mesh[0], "model": mesh[1]}
        expected = [0, 0, 0]
        for row in task.weight_table():
            whole = row.size // math.prod(sizes[axis] for axis in row.spec if axis)
            unsplit = [n for n, axis in zip(row.used, row.spec[row.stacked :], strict=True) if sizes.get(axis, 1) == 1]
            part = whole // (mesh[0] if any(n % mesh[0] == 0 for n in unsplit) else 1)
            held = [part if stage >= least else whole for least in (3, 2, 1)]
            for i, (n, width) in enumerate(zip(held, RECIPES[name][1], strict=True)):
                expected[i] += n * width
        totals = weight_summary(with_recipe(name, ZERO_STAGE=stage)(), sizes)["totals"]
        found = [totals[f"{kind}bytes_per_device"] for kind in ("", "gradient_", "optimizer_")]
        assert found == expected, (stage, mesh)
        if mesh == (8, 1):  # every leaf divides; the reference's program has one counter more
            assert sum(found) == RECIPES[name][2][stage] - 4


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("name", RECIPES)
def test_bytes_of_a_compiled_update(name, stage):
    """The arguments of a program that updates weights from gradients, as the compiler reports them."""
    session = Session(with_recipe(name, ZERO_STAGE=stage)())
    table = placed_table(session.task, session.mesh_shape)
    with session.placed():
        state = session.abstract_state
        params = state.variables["params"]
        shardings = table.tree(lambda row: jax.NamedSharding(session.mesh, row.gradient_spec))["params"]
        kind = session.task.gradient_dtype
        gradient = jax.tree.map(lambda w, s: jax.ShapeDtypeStruct(w.shape, kind, sharding=s), params, shardings)
        optimizer = session.task.optimizer.build(session.task.weight_table())
        update = jax.jit(optimizer.update, donate_argnums=1, keep_unused=True)
        memory = update.lower(gradient, state.optimizer, params).compile().memory_analysis()
    counters = sum(leaf.dtype.itemsize for leaf in jax.tree.leaves(state.optimizer) if leaf.shape == ())
    assert counters == 8  # Adam's and the schedule's
    assert memory.argument_size_in_bytes == RECIPES[name][2][stage] + 4


UNEVEN = {"MODEL_DIM": 36, "NUM_HEADS": 3, "FFN_DIM": 50, "VOCAB_SIZE": 63}


@pytest.mark.parametrize("stage", [1, 3])
def test_bytes_of_a_compiled_step_where_leaves_do_not_divide(stage):
    session = Session(Sheet.derive(ZERO_STAGE=stage, **UNEVEN)())
    with session.placed():
        memory = session.compile_step(session.abstract_batch).memory_analysis()
    totals = weight_summary(session.experiment, session.mesh_shape)["totals"]
    assert totals["optimizer_bytes_per_device"] > totals["bytes"] * 2 // 8
    scalars = sum(leaf.dtype.itemsize for leaf in jax.tree.leaves(session.abstract_state) if leaf.shape == ())
    held = totals["bytes_per_device"] + totals["optimizer_bytes_per_device"]
    assert memory.alias_size_in_bytes == held + scalars


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_bytes_of_a_compiled_step(stage):
    """Arguments are weights, slots, counters and sums, the batch's own rows and the seed; all but the last two stay."""
    session = Session(Sheet.derive(ZERO_STAGE=stage)())
    with session.placed():
        compiled = session.compile_step(session.abstract_batch)
        state, batch = session.abstract_state, session.abstract_batch
    memory = compiled.memory_analysis()
    kept = {0: 12, 1: 4 + 8 / 8, 3: 12 / 8}[stage] * WEIGHTS
    scalars = sum(leaf.dtype.itemsize for leaf in jax.tree.leaves(state) if leaf.shape == ())
    rows = sum(math.prod(leaf.shape) * leaf.dtype.itemsize // 8 for leaf in jax.tree.leaves(batch))
    assert memory.alias_size_in_bytes == kept + scalars
    assert memory.argument_size_in_bytes == kept + scalars + rows + 8


def exchanged(stage, microbatches=1, **knobs):
    """Bytes that devices have behind the exchanges of one step, by kind and by whether all pieces share them."""
    knobs = {"ZERO_STAGE": stage, "GRADIENT_ACCUMULATION": microbatches, "BATCH_SIZE": 8 * microbatches} | knobs
    session = Session(Sheet.derive(**knobs)())
    with session.placed():
        text = session.compile_step(session.abstract_batch).as_text()
    found = {}
    for exchange in exchanges(text, session.mesh_shape):
        inside = microbatches > 1 and microbatches in exchange.loops[:1]
        small = exchange.kind == "all-reduce" and exchange.result_bytes < 1024  # losses, counts and norms
        assert not (inside and stage < 2 and exchange.axis == "data"), "once per update"
        key = ("small" if small or exchange.axis != "data" else exchange.kind, inside)
        found[key] = found.get(key, 0) + exchange.times * exchange.result_bytes
    return {key: size for key, size in found.items() if key[0] != "small"}


WHOLE, PART = 4 * WEIGHTS, WEIGHTS // 2
UNSTACKED = 4 * (2048 * 256 + 2 * 256)
SCALES = 4 * 4 * 256  # gains of layer norms: kept, not gathered again


def only_all_reduce(found):
    """The whole gradient once, and a few sums in the same exchange."""
    assert set(found) == {("all-reduce", False)}
    assert 0 <= found[("all-reduce", False)] - WHOLE < 100


def test_exchanges_of_a_step():
    """Stage 3 gathers the weights of layers once on the way forth and once on the way back (section 7.2.2)."""
    only_all_reduce(exchanged(0))
    assert exchanged(1) == {("reduce-scatter", False): PART, ("all-gather", False): WHOLE}
    assert exchanged(2) == {("reduce-scatter", False): PART, ("all-gather", False): WHOLE}
    third = exchanged(3)
    assert third.pop(("reduce-scatter", False)) == PART
    gathered = third.pop(("all-gather", False))
    assert 2 * WHOLE - UNSTACKED - 16 * SCALES <= gathered <= 2 * WHOLE - UNSTACKED
    assert not third


def test_how_often_a_step_exchanges():
    """Stage 1: each of 19 rows once. Stage 2 and 3: gradients of 16 rows in each of 4 layers and of 3 rows beside."""

    def times(stage):
        session = Session(Sheet.derive(ZERO_STAGE=stage)())
        with session.placed():
            text = session.compile_step(session.abstract_batch).as_text()
        found = collections.Counter()
        for exchange in exchanges(text, session.mesh_shape):
            found[exchange.kind] += exchange.times
        return found["reduce-scatter"], found["all-gather"]

    assert times(1) == (19, 19)
    assert times(2) == (67, 19)
    scattered, gathered = times(3)
    assert scattered == 67
    assert 67 < gathered <= 67 + 64


def test_exchanges_of_accumulated_steps():
    """Stages 0 and 1 exchange gradients once per update, 2 and 3 once per micro-batch, in parts."""
    pieces = 5  # no other loop has so many turns
    only_all_reduce(exchanged(0, pieces))
    assert exchanged(1, pieces) == {("reduce-scatter", False): PART, ("all-gather", False): WHOLE}
    assert exchanged(2, pieces) == {("reduce-scatter", True): pieces * PART, ("all-gather", False): WHOLE}
    third = exchanged(3, pieces)
    assert third[("reduce-scatter", True)] == pieces * PART
    assert third[("all-gather", False)] == UNSTACKED
    assert set(third) == {("reduce-scatter", True), ("all-gather", False), ("all-gather", True)}


def test_exchanges_beside_split_heads():
    """Where the other axis splits a weight, so it does what is exchanged."""
    experiment = Sheet.derive(DEVICE_MESH_SHAPE=(4, 2), ZERO_STAGE=1)()
    parts, whole = 0, 0
    for row in placed_table(build(experiment.Task(), "task"), {"data": 4, "model": 2}):
        held = row.bytes_per_device({"data": 4, "model": 2})
        parts, whole = (parts + held, whole) if "data" in row.slot_spec else (parts, whole + held)
    found = exchanged(1, DEVICE_MESH_SHAPE=(4, 2))
    assert 0 <= found.pop(("all-reduce", False)) - whole < 100
    assert found == {("reduce-scatter", False): parts // 4, ("all-gather", False): parts}


def test_gradients_of_stage_2_take_less_memory():
    def temporaries(stage):
        session = Session(Sheet.derive(ZERO_STAGE=stage, GRADIENT_ACCUMULATION=4, BATCH_SIZE=32)())
        with session.placed():
            return session.compile_step(session.abstract_batch).memory_analysis().temp_size_in_bytes

    first, second = temporaries(1), temporaries(2)
    assert first - second > 4 * WEIGHTS * 3 // 4


def trained(stage, steps=3, base=Sheet, **knobs):
    """Losses and weights behind a few updates."""
    session = Session(base.derive(ZERO_STAGE=stage, LOG_EVERY=1, **knobs)())
    with session.placed():
        batches = session.batches(session.train.input)
        batch, _ = next(batches)
        update, state, losses = session.compile_step(batch), session.init(), []
        for _ in range(steps):
            state = session.settle(update(state, batch, session.seed))
            losses.append(float(state.sums.loss / state.sums.weight))
            batch, _ = next(batches)
        metrics = session.metrics_of(state.variables, batch)
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
    "compiler": ({}, None),
    "accumulated": ({"GRADIENT_ACCUMULATION": 4, "BATCH_SIZE": 32}, None),
    "clipped by the norm": ({"CLIP_NORM": 0.1, "CLIP_VALUE": None}, None),
    "adafactor": ({"OPTIMIZER": "adafactor", "CLIP_VALUE": None, "MODEL_DIM": 128, "NUM_HEADS": 8}, None),
    "lion": ({"OPTIMIZER": "lion", "LEARNING_RATE": 1e-4}, None),
    "heads split": ({"DEVICE_MESH_SHAPE": (4, 2)}, None),
    "heads split, and rows by two": ({"DEVICE_MESH_SHAPE": (2, 4)}, None),
    "fully sharded by its table": ({"WEIGHTS": GptLm.WEIGHTS, "OPTIONAL_WEIGHTS": GptLm.OPTIONAL_WEIGHTS}, None),
    "rows that do not divide": (UNEVEN, None),
    "remat": ({"REMAT": "dots"}, None),
    "head-QK": ({"HEAD_QK": 16}, None),
    "pieces of rows": ({"TBPTT_LEN": 8}, None),
    "narrow": ({**NARROW, "MASTER_WEIGHTS": True, "DTYPE": "bfloat16"}, 1e-3),
}


# Stage 3 does all that the others do; what tells those apart from it is shown by a few.
LESS = ("accumulated", "rows that do not divide", "heads split", "fully sharded by its table")


@functools.cache
def without(name):
    """What a variant comes to without ZeRO, whose exchanges are the compiler's."""
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


@pytest.mark.parametrize(
    "name", ["vq.VQStdlib", "mu.MuTiny", "tiny.StdlibTinyLlama", "wiki_bert.MLPerfBertDense13B32x32"]
)
def test_any_family(name):
    axis, *others = resolve(name).MESH_AXES
    knobs = [f"DEVICE_MESH_SHAPE={(4, 2) if len(others) == 1 else (4, 1, 2)}", "LOG_EVERY=1"]
    losses = []
    for stage in ("none", "3"):
        experiment = resolve(name, [*knobs, f"ZERO_STAGE={stage}", f"ZERO_AXIS={axis}"], smoke=True)
        losses.append(trained(experiment.ZERO_STAGE, base=type(experiment))[0])
    np.testing.assert_allclose(*losses, rtol=2e-4)


def test_dropout_differs_between_devices():
    """Equal rows on all devices would have equal gradients, were their masks the same."""
    session = Session(Sheet.derive(**SMALL | {"DROPOUT": 0.5, "VOCAB_SIZE": 256})())
    found = set()
    with session.placed():
        batch, _ = next(session.batches(session.train.input))
        batch = jax.tree.map(lambda x: x[:1].repeat(8, 0), batch)
        for rows in (1, 8):
            cut = batch.replace(weights=batch.weights.at[rows:].set(0))
            state = session.compile_step(cut)(session.init(), cut, session.seed)
            found.add(round(float(state.sums.loss / state.sums.weight), 6))
    assert len(found) == 2


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        (
            {"WEIGHTS": ZeroLm.WEIGHTS | Specs(ffn_in_mf=P(None, ("data", "model"))), "DEVICE_MESH_SHAPE": (4, 2)},
            "WEIGHTS.ffn_in_mf = P(None, ('data', 'model')) splits one dimension over ZERO_AXIS = data and another",
        ),
        ({"ZERO_STAGE": 4}, "ZERO_STAGE = 4 must be 0, 1, 2, 3 or none"),
        ({"ZERO_AXIS": "dta"}, "ZERO_AXIS = dta is not an axis of the mesh. Did you mean 'data'"),
        ({"ZERO_AXIS": "model"}, "ZERO_AXIS = model must split the rows of the batch"),
    ],
)
def test_bad_requests(knobs, said):
    with pytest.raises(UsageError, match=re.escape(said)):
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
        batch, _ = next(session.batches(session.train.input))
        state = session.settle(session.compile_step(batch)(session.init(), batch, session.seed))
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
        "GATED_EXPERTS": True,
        "GATED": True,
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
            {"WEIGHTS": Experts.WEIGHTS | Specs(expert_out_efm=P(None, "model", "data"))},
            "'data' splits the experts of WEIGHTS.expert_in_emf, but not those of WEIGHTS.expert_out_efm",
        ),
    ],
)
def test_bad_requests_of_experts(knobs, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        check(Experts.derive(ZERO_STAGE=1, **knobs)(), {"data": 8, "model": 1})
