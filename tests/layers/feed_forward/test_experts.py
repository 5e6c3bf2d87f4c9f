"""The mixture-of-experts layer: equal on any split, with an all-to-all; what it reports; decoding."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core import meta
from jax.sharding import NamedSharding

from layers.auxiliary import LOSSES, METRICS
from layers.errors import UsageError
from layers.feed_forward.experts import MixtureOfExperts
from layers.specs import P, Specs
from layers.weights.initializers import FanInUniform

X = jax.random.normal(jax.random.key(0), (8, 16, 32))
SEGMENTS = jnp.where(jnp.arange(16) < 13, 1, 0)[None].repeat(8, 0)


def layer(axis="data", **fields):
    """Groups split over "data", experts over `axis`, hidden units over "model"."""
    weights = Specs(
        router_me=P(None, None),
        router_bias_e=P(None),
        expert_in_emf=P(axis, None, "model"),
        expert_gate_emf=P(axis, None, "model"),
        expert_out_efm=P(axis, "model", None),
    )
    activations = Specs(
        group_gsm=P("data", None, None),
        combine_gsec=P("data", None, None, None),
        dispatched_gecm=P("data", None, None, None),
        expert_in_egcm=P(axis, None if axis == "data" else "data", None, None),
        expert_hidden_egcf=P(axis, None if axis == "data" else "data", None, "model"),
        expert_out_egcm=P(axis, None if axis == "data" else "data", None, None),
        returned_gecm=P("data", None, None, None),
    )
    init = FanInUniform()
    sizes = {"model_dim": 32, "hidden_dim": 64, "num_experts": 8, "num_groups": 8}
    made = {"specs": weights, "activations": activations, "initializer": init, "out_initializer": init}
    return MixtureOfExperts(**{**made, **sizes, **fields})


def variables_of(module):
    return meta.unbox(module.init(jax.random.key(1), X))


def run(module, variables):
    def objective(variables, x):
        y, reported = module.apply(variables, x, SEGMENTS, mutable=[LOSSES, METRICS])
        return jnp.sum(jnp.sin(y)) + sum(map(jnp.sum, jax.tree.leaves(reported[LOSSES]))), (y, reported)

    return jax.grad(objective, has_aux=True)(variables, X)


@pytest.mark.parametrize("routing", ["top2", "top_k", "expert_choice"])
@pytest.mark.parametrize(
    ("axes", "shape", "axis"),
    [(("data", "model"), (4, 2), "data"), (("data", "expert", "model"), (2, 2, 2), "expert")],
)
def test_split_experts_equal_complete_ones(routing, axes, shape, axis):
    module = layer(axis, routing=routing, gated=True, router_z_loss=0.1)
    variables = variables_of(module)
    expected = run(module, variables)
    mesh = jax.make_mesh(shape, axes, (jax.sharding.AxisType.Auto,) * len(axes))
    with jax.set_mesh(mesh):
        place = {name: NamedSharding(mesh, spec) for name, spec in module.specs.items()}
        placed = {"params": {name: jax.device_put(w, place[name]) for name, w in variables["params"].items()}}
        split = jax.jit(lambda v: run(module, v))(placed)
    for a, b in zip(jax.tree.leaves(split), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


def test_tokens_change_devices_in_an_all_to_all():
    """Forward: to the experts and back. The gradient of the weights needs another for what comes back."""
    module = layer()
    variables = variables_of(module)
    mesh = jax.make_mesh((4, 2), ("data", "model"), (jax.sharding.AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        place = {name: NamedSharding(mesh, module.specs[name]) for name in variables["params"]}
        rows = NamedSharding(mesh, P("data", None, None))
        forward = jax.jit(module.apply, in_shardings=({"params": place}, rows), out_shardings=rows)
        text = forward.lower(variables, X).compile().as_text()
        gradient = jax.jit(lambda v: run(module, v)[0], in_shardings=({"params": place},))
        both = gradient.lower(variables).compile().as_text()
    assert len(re.findall(r" = [^=]* all-to-all\(", text)) == 2
    assert len(re.findall(r" = [^=]* all-to-all\(", both)) >= 3
    assert "all-gather" not in text


def test_one_group_of_one_expert_is_a_feed_forward_layer():
    module = layer(num_experts=1, num_groups=1, second_expert="none", capacity_factor=1.0)
    variables = variables_of(module)
    w = {name: value[0] if value.ndim == 3 else value for name, value in variables["params"].items()}
    expected = jax.nn.relu(X @ w["expert_in_emf"]) @ w["expert_out_efm"]
    np.testing.assert_allclose(module.apply(variables, X), expected, atol=1e-5)


def test_padding_goes_nowhere_and_counts_nowhere():
    module = layer(aux_loss=1.0)
    variables = variables_of(module)
    y, reported = module.apply(variables, X, SEGMENTS, mutable=[LOSSES, METRICS])
    assert not np.asarray(y[:, 13:]).any()
    other, again = module.apply(variables, X.at[:, 13:].set(9.0), SEGMENTS, mutable=[LOSSES, METRICS])
    np.testing.assert_array_equal(y, other)
    assert jax.tree.all(jax.tree.map(np.array_equal, reported, again))


def test_reports():
    x = jnp.concatenate([X[:, :1].repeat(8, 1), X[:, 8:]], axis=1)  # equal tokens want equal experts
    _, reported = layer().apply(variables_of(layer()), x, SEGMENTS, mutable=[LOSSES, METRICS])
    metrics = reported[METRICS]
    load = {"router_load_max", "router_load_max_by_layer"}
    assert set(metrics) == {"router_aux_loss", "router_z_loss", "router_dropped"} | load
    assert 0.2 < float(metrics["router_dropped"]) < 0.9
    assert float(metrics["router_load_max"]) > 1
    assert float(metrics["router_aux_loss"]) > 0
    np.testing.assert_allclose(reported[LOSSES]["router"], 0.01 * metrics["router_aux_loss"])


def test_jitter_acts_in_training_alone():
    module = layer(jitter=0.5)
    variables = variables_of(module)
    still = layer().apply(variables, X)
    np.testing.assert_array_equal(module.apply(variables, X), still)
    moved = module.apply(variables, X, rngs={"dropout": jax.random.key(3)})
    assert np.abs(np.asarray(moved - still)).max() > 1e-3


def test_a_step_of_few_tokens_works():
    module = layer(num_groups=8)
    assert module.apply(variables_of(module), X[:3, :1]).shape == (3, 1, 32)


def test_no_slots_is_a_clear_error():
    with pytest.raises(UsageError, match="capacity"):
        layer(capacity_factor=0.0).init(jax.random.key(0), X)
    for fields in ({"num_groups": 0}, {"capacity_factor": -1.0}, {"capacity": -1}, {"jitter": 1.0}):
        with pytest.raises(UsageError, match=next(iter(fields))):
            layer(**fields).init(jax.random.key(0), X)
    with pytest.raises(UsageError, match="Choose top2, top_k or expert_choice"):
        layer(routing="hash").init(jax.random.key(0), X)


@pytest.mark.parametrize("gates", ["softmax_then_top_k", "top_k_then_softmax"])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_top_k_equals_all_experts_with_zero_gates(gates, count):
    """A dense reference evaluates every expert, and its gates are 0 for experts that a token did not choose."""
    module = layer(routing="top_k", experts_per_token=count, gates=gates, gated=True, capacity_factor=None)
    variables = variables_of(module)
    w = variables["params"]
    logits = X @ w["router_me"]
    chosen = logits >= jnp.sort(logits, axis=-1)[..., -count, None]
    if gates == "softmax_then_top_k":
        gate = jax.nn.softmax(logits, axis=-1) * chosen
    else:
        gate = jax.nn.softmax(jnp.where(chosen, logits, -jnp.inf), axis=-1)
    hidden = jnp.einsum("bsm,emf->bsef", X, w["expert_in_emf"])
    hidden *= jax.nn.relu(jnp.einsum("bsm,emf->bsef", X, w["expert_gate_emf"]))
    expected = jnp.einsum("bsef,efm,bse->bsm", hidden, w["expert_out_efm"], gate)
    found = module.apply(variables, X, mutable=[LOSSES, METRICS])[0]
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_groups_change_no_output_without_slots():
    made = [layer(routing="top_k", capacity_factor=None, num_groups=number) for number in (1, 8)]
    variables = variables_of(made[0])
    one, eight = (module.apply(variables, X, SEGMENTS, mutable=[LOSSES, METRICS])[0] for module in made)
    np.testing.assert_allclose(one, eight, atol=2e-6)
