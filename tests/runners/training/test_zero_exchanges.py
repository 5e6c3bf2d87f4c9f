"""ZeRO: bytes that a device stores, and the exchanges between devices in compiled programs."""

import collections
import itertools
import math

import jax
import pytest

from registry.build import build
from registry.records.snapshot import weight_summary
from runners.planner.programs.hlo import collectives
from runners.session import Session
from tasks.zero import placed_table
from tests.support.references.zero import NARROW, UNEVEN, Sheet

MESHES = ((8, 1), (4, 2), (2, 4), (1, 8))
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
        state = session.abstract.state
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


@pytest.mark.parametrize("stage", [1, 3])
def test_bytes_of_a_compiled_step_where_leaves_do_not_divide(stage):
    session = Session(Sheet.derive(ZERO_STAGE=stage, **UNEVEN)())
    with session.placed():
        memory = session.functions.compile_step(session.abstract.batch).memory_analysis()
    totals = weight_summary(session.experiment, session.mesh_shape)["totals"]
    assert totals["optimizer_bytes_per_device"] > totals["bytes"] * 2 // 8
    scalars = sum(leaf.dtype.itemsize for leaf in jax.tree.leaves(session.abstract.state) if leaf.shape == ())
    held = totals["bytes_per_device"] + totals["optimizer_bytes_per_device"]
    assert memory.alias_size_in_bytes == held + scalars


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_bytes_of_a_compiled_step(stage):
    """Arguments are weights, slots, counters and sums, the batch's own rows and the seed; all but the last two stay."""
    session = Session(Sheet.derive(ZERO_STAGE=stage)())
    with session.placed():
        compiled = session.functions.compile_step(session.abstract.batch)
        state, batch = session.abstract.state, session.abstract.batch
    memory = compiled.memory_analysis()
    state_bytes = {0: 12, 1: 4 + 8 / 8, 3: 12 / 8}[stage] * WEIGHTS
    scalars = sum(leaf.dtype.itemsize for leaf in jax.tree.leaves(state) if leaf.shape == ())
    rows = sum(math.prod(leaf.shape) * leaf.dtype.itemsize // 8 for leaf in jax.tree.leaves(batch))
    assert memory.alias_size_in_bytes == state_bytes + scalars
    assert memory.argument_size_in_bytes == state_bytes + scalars + rows + 8


def exchanged(stage, microbatches=1, **knobs):
    """Bytes per device after the collectives of one step, by kind and by whether each micro-batch has its own."""
    knobs = {"ZERO_STAGE": stage, "GRADIENT_ACCUMULATION": microbatches, "BATCH_SIZE": 8 * microbatches} | knobs
    session = Session(Sheet.derive(**knobs)())
    with session.placed():
        text = session.functions.compile_step(session.abstract.batch).as_text()
    found = {}
    for collective in collectives(text, session.mesh_shape):
        inside = microbatches > 1 and microbatches in collective.loops[:1]
        small = collective.kind == "all-reduce" and collective.result_bytes < 1024  # losses, counts and norms
        assert not (inside and stage < 2 and collective.axis == "data"), "once per update"
        key = ("small" if small or collective.axis != "data" else collective.kind, inside)
        found[key] = found.get(key, 0) + collective.times * collective.result_bytes
    return {key: size for key, size in found.items() if key[0] != "small"}


WHOLE, PART = 4 * WEIGHTS, WEIGHTS // 2
UNSTACKED = 4 * (2048 * 256 + 2 * 256)
SCALES = 4 * 4 * 256  # gains of layer norms: kept, not gathered again


def only_all_reduce(found):
    """The complete gradient once, and a few sums in the same collective."""
    assert set(found) == {("all-reduce", False)}
    assert 0 <= found[("all-reduce", False)] - WHOLE < 100


def test_exchanges_of_a_step():
    """Stage 3 gathers the weights of layers once in the forward and once in the backward pass (section 7.2.2)."""
    only_all_reduce(exchanged(0))
    assert exchanged(1) == {("reduce-scatter", False): PART, ("all-gather", False): WHOLE}
    assert exchanged(2) == {("reduce-scatter", False): PART, ("all-gather", False): WHOLE}
    third = exchanged(3)
    assert third.pop(("reduce-scatter", False)) == PART
    gathered = third.pop(("all-gather", False))
    assert 2 * WHOLE - UNSTACKED - 16 * SCALES <= gathered <= 2 * WHOLE - UNSTACKED
    assert not third


def test_how_often_a_step_exchanges():
    """Stage 1: each of 19 rows once. Stage 2 and 3: gradients of 16 rows in each of 4 layers and of 3 other rows."""

    def times(stage):
        session = Session(Sheet.derive(ZERO_STAGE=stage)())
        with session.placed():
            text = session.functions.compile_step(session.abstract.batch).as_text()
        found = collections.Counter()
        for collective in collectives(text, session.mesh_shape):
            found[collective.kind] += collective.times
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


def test_exchanges_with_split_heads():
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
            return session.functions.compile_step(session.abstract.batch).memory_analysis().temp_size_in_bytes

    first, second = temporaries(1), temporaries(2)
    assert first - second > 4 * WEIGHTS * 3 // 4
