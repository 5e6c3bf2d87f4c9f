"""The schedule of a pipeline: every micro-batch passes through all layers in order, on the stage that has them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from layers.pipeline import Pipeline, Schedule, Stages, exchanges
from layers.remat import REMAT_POLICIES
from layers.specs import P, Specs

SCHEDULES = [(2, 1, 2), (2, 2, 4), (4, 1, 8), (4, 2, 4), (4, 3, 8), (3, 2, 6), (8, 4, 8)]


def schedule_of(stages, repeats, microbatches):
    return Schedule(stages=stages, repeats=repeats, microbatches=microbatches)


def mesh_of(**sizes):
    devices = np.array(jax.devices()[: np.prod(list(sizes.values()))])
    return Mesh(devices.reshape(*sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


@pytest.mark.parametrize("sizes", SCHEDULES)
def test_a_micro_batch_moves_to_the_next_stage_in_each_tick(sizes):
    schedule = schedule_of(*sizes)
    places = {}
    for tick in range(schedule.ticks):
        for stage in range(schedule.stages):
            repeat, microbatch, is_valid = schedule.at(tick, stage)
            if is_valid:
                places.setdefault(microbatch, []).append((tick, stage, repeat))
    assert sorted(places) == list(range(schedule.microbatches))
    for visits in places.values():
        ticks, stages, repeats = zip(*visits, strict=True)
        assert list(ticks) == list(range(ticks[0], ticks[0] + len(ticks)))
        assert list(stages) == list(range(schedule.stages)) * schedule.repeats
        assert list(repeats) == sorted(repeats)
    working = sum(len(visits) for visits in places.values())
    assert working == pytest.approx((1 - schedule.bubble) * schedule.ticks * schedule.stages)


@pytest.mark.parametrize("stages", range(2, 9))
@pytest.mark.parametrize("repeats", range(1, 7))
def test_consecutive_parts_are_dealt_out_by_permutations(stages, repeats):
    sent, received = exchanges(stages, repeats)
    got = {stage: {} for stage in range(stages)}
    for permutation, of_stages in enumerate(sent):
        numbers = [stage * repeats + part for stage, part in enumerate(of_stages)]
        assert sorted(number % stages for number in numbers) == list(range(stages))
        for number in numbers:
            got[number % stages][permutation] = number
    for stage in range(stages):
        assert [got[stage][at] for at in received[stage]] == list(range(stage, stages * repeats, stages))


def test_as_many_micro_batches_as_the_rows_allow():
    pipeline = Pipeline(activations=Specs(residual_bsm=P(("stage", "data"), None, None)), axis="stage")
    mesh = mesh_of(stage=2, data=2)
    found = {}
    with jax.set_mesh(mesh):
        for rows in (1, 2, 4, 12, 16, 32, 64):
            schedule = pipeline.schedule(rows)
            found[rows] = None if schedule is None else schedule.microbatches
    assert found == {1: None, 2: None, 4: 2, 12: 6, 16: 8, 32: 8, 64: 8}
    assert pipeline.schedule(16) is None, "without a mesh"


@pytest.mark.parametrize("sizes", [(2, 1, 4), (2, 2, 4), (4, 2, 8)])
def test_layers_run_in_order_with_keys_of_their_own(sizes):
    schedule = schedule_of(*sizes)
    layers, rows = 2 * schedule.stages * schedule.repeats, 2 * schedule.microbatches
    variables = {"params": {"w": jnp.arange(1.0, layers + 1)}}
    x, segments = jax.random.normal(jax.random.key(1), (rows, 4, 3)), jnp.tile(jnp.arange(rows)[:, None], 4)

    def layer(variables, rngs, x, segments, positions):
        assert positions is None
        w = variables["params"]["w"]
        noise = jax.random.uniform(rngs["dropout"], ())
        return jnp.tanh(x * w + segments[..., None]), {"losses": {"one": w * jnp.mean(x)}, "metrics": {"noise": noise}}

    def in_order(variables, x):
        losses = []
        for number in range(layers):
            losses.append(variables["params"]["w"][number] * jnp.mean(x))
            x = jnp.tanh(x * variables["params"]["w"][number] + segments[..., None])
        return x, jnp.stack(losses)

    def staged(variables, x):
        rngs = {"dropout": jax.random.key(0)}
        policy = jax.checkpoint_policies.dots_saveable
        stages = Stages(axis="stage", schedule=schedule, layer=layer, policy=policy)
        x, added = stages.run(variables, rngs, layers, (x, segments, None))
        return x, added["losses"]["one"], added["metrics"]["noise"]

    total = lambda outputs: jnp.sum(outputs[0] ** 2) + jnp.sum(outputs[1])
    mesh = mesh_of(stage=schedule.stages)
    with jax.set_mesh(mesh):
        outputs = jax.jit(staged)(variables, x)
        gradients = jax.jit(jax.grad(lambda *arrays: total(staged(*arrays)), argnums=(0, 1)))(variables, x)
    expected = in_order(variables, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), outputs[:2], expected)
    wanted = jax.grad(lambda *arrays: total(in_order(*arrays)), argnums=(0, 1))(variables, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), gradients, wanted)
    fold = jax.random.fold_in
    keys = [[fold(fold(jax.random.key(0), m), n) for m in range(schedule.microbatches)] for n in range(layers)]
    noise = [np.mean([jax.random.uniform(key, ()) for key in of_layer]) for of_layer in keys]
    np.testing.assert_allclose(outputs[2], noise, rtol=1e-5)


@pytest.mark.parametrize("name", REMAT_POLICIES)
def test_every_policy_saves_inputs_of_layers_and_no_weights(name):
    schedule, layers = schedule_of(2, 2, 4), 4
    policy = REMAT_POLICIES[name] or jax.checkpoint_policies.dots_saveable
    layer = lambda variables, rngs, x, *others: (jnp.tanh(x @ variables["params"]["w"]), {})
    stages = Stages(axis="stage", schedule=schedule, layer=layer, policy=policy)

    def loss(w, x):
        return jnp.sum(stages.run({"params": {"w": w}}, {}, layers, (x, None, None))[0])

    with jax.set_mesh(mesh_of(stage=2)):
        arguments = jnp.ones((layers, 6, 6)), jnp.ones((4, 5, 6))
        program = str(jax.make_jaxpr(jax.grad(loss))(*arguments))
    assert f"f32[{schedule.ticks},1,1,5,6]" in program
    assert f"f32[{schedule.ticks},1,6,6]" not in program
