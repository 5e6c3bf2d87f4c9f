import typing

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from layers.specs import P
from tasks.optimizers.optimizer import Clipping, MethodName, Optimizer, RoleFactors
from tasks.optimizers.schedules import Schedule
from tests.support.references.models import task_of, variables_of

TASK = task_of()
TABLE = TASK.weight_table()


def optimizer(method="adamw", **fields):
    parts = {"schedule": Schedule(), "clipping": Clipping(), "role_factors": RoleFactors()}
    return Optimizer(method=method, **{"learning_rate": 0.1, **parts, **fields})


def one_update(chosen, gradient_scale=1.0):
    params = variables_of(TASK)["params"]
    gradient = jax.tree.map(lambda w: gradient_scale * jnp.sin(w * 50), params)
    table = task_of_table(chosen)
    updates, _ = chosen.build(table).update(gradient, chosen.build(table).init(params), params)
    return params, gradient, updates


def task_of_table(chosen):
    return TABLE.mapped(chosen.assign)


REFERENCES = {
    "adamw": lambda mask: optax.adamw(0.1, 0.9, 0.95, 1e-8, weight_decay=0.3, mask=mask),
    "lion": lambda mask: optax.lion(0.1, 0.9, 0.95, weight_decay=0.3, mask=mask),
}


@pytest.mark.parametrize("method", REFERENCES)
def test_equals_optax_with_a_decay_mask_by_role(method):
    chosen = optimizer(method, weight_decay=0.3)
    params, gradient, updates = one_update(chosen)
    mask = TABLE.tree(lambda row: row.role in ("embedding", "hidden", "output"))["params"]
    assert not all(jax.tree.leaves(mask))
    reference = REFERENCES[method](mask)
    expected, _ = reference.update(gradient, reference.init(params), params)
    for a, b in zip(jax.tree.leaves(updates), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_sgd_is_the_gradient_times_the_rate():
    _, gradient, updates = one_update(optimizer("sgd", beta1=0.0))
    for u, g in zip(jax.tree.leaves(updates), jax.tree.leaves(gradient), strict=True):
        np.testing.assert_allclose(u, -0.1 * g, atol=1e-7)


def test_role_factors_scale_the_complete_update():
    plain = one_update(optimizer(weight_decay=0.3))[2]
    scaled = one_update(optimizer(weight_decay=0.3, role_factors=RoleFactors(embedding=0.5, scale=3.0)))[2]
    factors = TABLE.tree(lambda row: {"embedding": 0.5, "scale": 3.0}.get(row.role, 1.0))["params"]
    for a, b, f in zip(jax.tree.leaves(scaled), jax.tree.leaves(plain), jax.tree.leaves(factors), strict=True):
        np.testing.assert_allclose(a, f * b, atol=1e-6)


@pytest.mark.parametrize(
    ("clipping", "check"),
    [
        (Clipping(global_norm=0.5), lambda updates: optax.global_norm(updates) / 0.1 <= 0.5 + 1e-5),
        (Clipping(value=0.01), lambda updates: max(abs(u).max() for u in jax.tree.leaves(updates)) <= 0.001 + 1e-7),
        (
            Clipping(block_rms=0.02),
            lambda updates: all(np.sqrt(np.mean(u**2)) <= 0.002 + 1e-6 for u in jax.tree.leaves(updates)),
        ),
    ],
)
def test_clipping_limits_the_gradient(clipping, check):
    assert not check(one_update(optimizer("sgd", beta1=0.0), 10.0)[2])
    assert check(one_update(optimizer("sgd", beta1=0.0, clipping=clipping), 10.0)[2])


@pytest.mark.parametrize("limit", [0.5, 1e4])
def test_clipping_by_the_global_norm_is_that_of_optax(limit):
    gradient = {"a": jnp.linspace(-3, 3, 12).reshape(3, 4), "b": jnp.arange(5.0)}
    clipped = lambda transformation: transformation.update(gradient, transformation.init(gradient))[0]
    (ours,) = Clipping(global_norm=limit).build()
    for a, b in zip(*map(jax.tree.leaves, map(clipped, (ours, optax.clip_by_global_norm(limit)))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_slots_follow_their_weight():
    chosen = optimizer()
    state = jax.eval_shape(chosen.build(TABLE).init, TABLE.abstract["params"])
    specs = chosen.state_specs(TABLE, state)
    adam = next(part for part in specs if hasattr(part, "mu"))
    assert adam.mu["stack"]["block"]["ffn"]["ffn_in_mf"] == P(None, "data", "model")
    assert adam.nu["embedding"]["embedding_vm"] == P("model", "data")
    assert adam.count == P()


def test_factored_slots_drop_the_reduced_dimension():
    chosen = optimizer("adafactor", min_dim_size_to_factor=4)
    table = task_of_table(chosen)
    state = jax.eval_shape(chosen.build(table).init, table.abstract["params"])
    specs = chosen.state_specs(table, state)
    slots, spec = (tree.slots["stack"]["block"]["ffn"] for tree in (state[0], specs[0]))
    for name, row, column in (
        ("ffn_in_mf", P(None, "data"), P(None, "model")),  # (2, 16, 32): rows keep m, columns keep f
        ("ffn_out_fm", P(None, "data"), P(None, "model")),  # (2, 32, 16): the larger dimension f is reduced for rows
    ):
        assert slots[name].row.shape == (2, 16)
        assert slots[name].column.shape == (2, 32)
        assert (spec[name].row, spec[name].column) == (row, column)
        assert slots[name].full is None
    norm = specs[0].slots["stack"]["block"]["ffn_norm"]["norm_scale_m"]
    assert (norm.row, norm.full) == (None, P(None, None))


@pytest.mark.parametrize("method", typing.get_args(MethodName))
@pytest.mark.parametrize("smallest", [4, 128])
def test_every_slot_can_be_placed_on_a_mesh(method, smallest):
    chosen = optimizer(method, min_dim_size_to_factor=smallest)
    table = task_of_table(chosen)
    state = jax.eval_shape(chosen.build(table).init, table.abstract["params"])
    mesh = jax.make_mesh((2, 4), ("data", "model"), (jax.sharding.AxisType.Auto,) * 2)
    for leaf, spec in zip(jax.tree.leaves(state), jax.tree.leaves(chosen.state_specs(table, state)), strict=True):
        assert len(spec) == len(leaf.shape)
        jax.sharding.NamedSharding(mesh, spec).shard_shape(leaf.shape)  # raises where it cannot be split
