"""Experts without slots: numbers of slots for all tokens, on any split; work and exchanges of closed forms."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core import meta
from jax.sharding import NamedSharding

from layers.auxiliary import METRICS, OVERHEAD, UPDATES, apply_updates
from layers.errors import UsageError
from layers.feed_forward import dropless
from layers.feed_forward.dense import FeedForward
from layers.feed_forward.exchanges import RaggedExchange
from layers.feed_forward.grouped_rows import block_size, grouped_product, in_blocks
from layers.platform import counting_products
from layers.specs import P, Specs
from layers.weights.initializers import FanInUniform
from runners.flops import matmul_flops
from runners.planner.programs.hlo import collective_totals
from tests.layers.feed_forward.test_experts import SEGMENTS, X, layer, run, variables_of
from tests.support.programs import compiled_anew

ALL_SLOTS = {"capacity_factor": 0.0, "capacity": 16}  # of groups of 16 tokens
MESHES = {
    "data": (("data", "model"), (4, 2)),  # experts over the axis that splits tokens, hidden units over another
    "expert": (("data", "expert", "model"), (2, 2, 2)),  # experts over an axis of their own
    ("data", "expert"): (("data", "expert", "model"), (2, 2, 2)),  # over both: gathered along the second
}


def on_mesh(module, variables, names, shape, function=run):
    mesh = jax.make_mesh(shape, names, (jax.sharding.AxisType.Auto,) * len(names))
    with jax.set_mesh(mesh):
        place = {name: NamedSharding(mesh, spec) for name, spec in module.specs.items()}
        placed = {"params": {name: jax.device_put(w, place[name]) for name, w in variables["params"].items()}}
        return jax.jit(lambda v: function(module, v))(placed)


def assert_equal(found, expected, atol=1e-5):
    """Equal up to `atol` times the largest number of each array."""
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=atol * max(1.0, float(jnp.max(jnp.abs(b)))))


CHOICES = {
    "top2": {},
    "one expert": {"second_expert": "none"},
    "top2, gates after the drop": {"legacy_gates": False},
    "top3": {"routing": "top_k", "experts_per_token": 3},
    "all of them": {"routing": "top_k", "experts_per_token": 8, "gates": "softmax_then_top_k"},
    "sigmoids": {"routing": "top_k", "gates": "normalized_sigmoid", "gate_scale": 2.5},
}


@pytest.mark.parametrize("name", CHOICES)
def test_numbers_and_gradients_are_those_of_slots_for_all_tokens(name):
    options = {"gated": True, "router_z_loss": 0.1, **CHOICES[name]}
    slots, sorted_ = layer(**ALL_SLOTS, **options), layer(capacity_factor=None, **options)
    variables = variables_of(slots)
    assert_equal(run(sorted_, variables), run(slots, variables))


@pytest.mark.parametrize("axis", MESHES)
@pytest.mark.parametrize("name", ["top2", "sigmoids"])
def test_split_experts_equal_complete_ones(name, axis):
    module = layer(axis, capacity_factor=None, gated=True, **CHOICES[name])
    variables = variables_of(module)
    assert_equal(on_mesh(module, variables, *MESHES[axis]), run(module, variables))


def test_tokens_that_no_axis_divides_stay_on_all_devices():
    module = layer(capacity_factor=None, num_groups=1)
    variables, x = variables_of(module), X[:3, :1]
    apply = lambda module, variables: module.apply(variables, x)
    found = on_mesh(module, variables, *MESHES["data"], apply)
    assert_equal(found, apply(module, variables))


def ragged_all_to_all(x, output, at, sizes, to, received, *, axis_name):
    """`jax.lax.ragged_all_to_all` by gathering all rows: XLA has none for CPUs."""
    del received
    me = jax.lax.axis_index(axis_name)
    rows, ats, counts, tos = (jax.lax.all_gather(array, axis_name) for array in (x, at, sizes, to))
    for sender in range(rows.shape[0]):
        index = jnp.arange(rows.shape[1]) - ats[sender, me]
        is_sent = (index >= 0) & (index < counts[sender, me])
        place = jnp.where(is_sent, index + tos[sender, me], output.shape[0])
        output = output.at[place].set(rows[sender], mode="drop")
    return output


@pytest.mark.parametrize("factor", [None, 1.0])
def test_ragged_exchanges_have_the_numbers_of_padded_ones(monkeypatch, factor):
    module = layer(capacity_factor=None, gated=True, receive_factor=None if factor is None else 8.0)
    variables = variables_of(module)
    variables["params"]["router_me"] *= jnp.where(jnp.arange(8) < 2, 3.0, 1.0)  # experts of one device are preferred
    expected = run(module, variables)
    monkeypatch.setattr(jax.lax, "ragged_all_to_all", ragged_all_to_all)
    monkeypatch.setattr(dropless, "PaddedExchange", RaggedExchange)
    found = on_mesh(module.clone(receive_factor=factor), variables, *MESHES["data"])
    if factor is None:
        assert_equal(found, expected)
        return
    dropped = float(found[1][1][METRICS]["router_dropped"])
    assert 0 < dropped < 0.5
    y, complete = found[1][0], expected[1][0]
    is_equal = np.isclose(y, complete, atol=1e-5).all(axis=-1)
    assert 1 - 2 * dropped <= is_equal.mean() < 1
    assert np.isfinite(jax.tree.leaves(found[0])[0]).all()


def test_choices_without_a_place_are_dropped_and_counted():
    """A device sends each other one its rows over 4, at most; one that wants more drops the last ones."""
    module = layer(capacity_factor=None, num_groups=4, receive_factor=1.0, routing="top_k", experts_per_token=1)
    variables = variables_of(module)
    logits = np.asarray(X.reshape(-1, 32) @ variables["params"]["router_me"]).reshape(4, -1, 8)
    wanted = np.stack([np.bincount(rows.argmax(-1) // 2, minlength=4) for rows in logits])  # by device of the expert
    dropped = np.maximum(wanted - wanted.sum(1, keepdims=True) // 4, 0).sum() / wanted.sum()
    report = lambda module, variables: module.apply(variables, X, mutable=[METRICS])[1][METRICS]["router_dropped"]
    assert dropped > 0.05
    np.testing.assert_allclose(on_mesh(module, variables, *MESHES["data"], report), dropped, atol=1e-6)
    assert float(report(module, variables)) == 0  # on one device


@pytest.mark.parametrize(("rows", "experts", "block"), [(70, 5, 8), (3, 9, 1), (64, 1, 16)])
def test_every_row_has_a_place_in_a_block_of_its_expert(rows, experts, block):
    random = np.random.default_rng(0)
    made = jax.jit(lambda expert: in_blocks(expert, experts, block))
    for skew in np.linspace(0, 5, 30):
        share = np.exp(-skew * random.permutation(experts + 1))
        expert = random.choice(experts + 1, size=rows, p=share / share.sum())  # `experts` is none
        blocks = made(expert)
        place, row = map(np.asarray, blocks.places)
        has = expert < experts
        assert len(set(place[has])) == has.sum()
        assert (place[~has] == row.size).all()
        assert (np.asarray(blocks.expert_j)[place[has] // block] == expert[has]).all()
        assert (row[place[has]] == np.arange(rows)[has]).all()
        assert (row < rows).sum() == has.sum()
        assert int(blocks.used) == sum(-(-count // block) for count in np.bincount(expert, minlength=experts + 1)[:-1])


@pytest.mark.parametrize("may_be_empty", [False, True])
def test_grouped_products_are_products_of_each_row(may_be_empty):
    x, w = jax.random.normal(jax.random.key(0), (40, 6)), jax.random.normal(jax.random.key(1), (3, 6, 5))
    expert = jnp.where(jnp.arange(32) < 20, 2, jnp.arange(32) % 4)
    blocks = in_blocks(expert, 3, 8)
    x = jnp.zeros((blocks.places.row_p.size, 6)).at[blocks.places.place_r].set(x[:32], mode="drop")
    of_place, has_row = jnp.repeat(blocks.expert_j, 8), blocks.places.row_p[:, None] < 32
    loss = lambda product: lambda x, w: jnp.sum(jnp.sin(product(x, w)) * has_row)
    grouped = lambda x, w: grouped_product(x, w, blocks, may_be_empty=may_be_empty)
    each = lambda x, w: jnp.einsum("pm,pmf->pf", x, w[of_place])
    assert_equal(grouped(x, w), each(x, w))
    assert_equal(jax.grad(loss(grouped), (0, 1))(x, w), jax.grad(loss(each), (0, 1))(x, w))


def largest_array(function, *arguments):
    """Returns the number of elements of the largest array that a traced function makes."""

    def sizes(jaxpr):
        for equation in jaxpr.eqns:
            yield from (math.prod(getattr(out.aval, "shape", ())) for out in equation.outvars)
            for value in equation.params.values():
                for inner in value if isinstance(value, tuple | list) else (value,):
                    inner = getattr(inner, "jaxpr", inner)
                    if hasattr(inner, "eqns"):
                        yield from sizes(inner)

    return max(sizes(jax.make_jaxpr(function)(*arguments).jaxpr))


def test_no_array_has_tokens_by_experts_by_slots_and_work_is_that_of_the_choices():
    """2,048 tokens, 2 of 16 experts: 3 matrices of 2 x 64 x 32 FLOPs for each choice, the router for each token."""
    tokens, experts, model_dim, hidden_dim = 2048, 16, 64, 32
    sizes = {"model_dim": model_dim, "hidden_dim": hidden_dim, "num_experts": experts, "num_groups": 1}
    module = layer(routing="top_k", gated=True, capacity_factor=None, **sizes)
    x = jnp.zeros((2, tokens // 2, model_dim))
    variables = meta.unbox(module.init(jax.random.key(0), x))
    apply = lambda variables, x: jnp.sum(module.apply(variables, x))
    counted = lambda variables, x: apply(variables, x)
    update = jax.grad(apply, argnums=(0, 1))
    assert largest_array(update, variables, x) < 4 * tokens * max(model_dim * 2, experts)
    slots = layer(routing="top_k", gated=True, capacity_factor=2.0, **sizes)
    assert largest_array(lambda *given: slots.apply(*given), variables, x) >= tokens * experts * tokens * 2 // experts
    router = 2 * tokens * model_dim * experts
    chosen = 2 * tokens * 3 * 2 * model_dim * hidden_dim
    with counting_products():
        assert matmul_flops(counted, variables, x, leave_out=OVERHEAD) == router + chosen
    block = block_size(2 * tokens, experts)
    padded = (2 * tokens + experts * block) / (2 * tokens)
    assert padded <= 1.125
    assert matmul_flops(apply, variables, x, leave_out=OVERHEAD) == router + chosen * padded
    assert matmul_flops(update, variables, x, leave_out=OVERHEAD) == 3 * (router + chosen * padded)


@pytest.mark.parametrize(("factor", "shape"), [(None, (8, 1)), (1.0, (8, 1)), (1.0, (4, 2))])
def test_bytes_of_all_to_all_are_those_of_the_closed_form(factor, shape):
    """Of n devices, each with T tokens of k choices: rows of m numbers to the experts and back, and their experts.

    A device sends every device f k T / n rows; f is the factor, n without one. The gradient sends both ways again.
    Devices that split hidden units send a share of the columns.
    """
    devices, hidden = shape
    module = layer(capacity_factor=None, routing="top_k", receive_factor=factor)
    variables = variables_of(module)
    mesh = jax.make_mesh(shape, ("data", "model"), (jax.sharding.AxisType.Auto,) * 2)
    with jax.set_mesh(mesh), compiled_anew():
        place = {name: NamedSharding(mesh, module.specs[name]) for name in variables["params"]}
        rows = NamedSharding(mesh, P("data", None, None))
        loss = lambda variables, x: jnp.sum(jnp.sin(module.apply(variables, x)))
        gradient = jax.jit(jax.grad(loss, argnums=(0, 1)), in_shardings=({"params": place}, rows))
        totals = collective_totals(gradient.lower(variables, X).compile().as_text(), mesh.shape)
    found = {one.dtype: one.bytes for one in totals if one.kind == "all-to-all"}
    sent = (devices if factor is None else factor) * 2 * (128 // devices) * (devices - 1) / devices
    assert found == {"f32": 4 * sent * (32 // hidden) * 4, "s32": sent * 4}


def test_biases_even_out_the_load():
    """Tokens of a common direction prefer some experts, until biases on the scores have changed."""
    module = layer(capacity_factor=None, routing="top_k", gates="normalized_sigmoid", bias_rate=0.02, aux_loss=0.0)
    x = X + 2 * jnp.sin(jnp.arange(32.0))
    variables = meta.unbox(module.init(jax.random.key(1), x))

    @jax.jit
    def step(variables):
        _, found = module.apply(variables, x, mutable=[METRICS, UPDATES])
        return apply_updates(variables, found[UPDATES]), found[METRICS]["router_load_max"]

    loads = []
    for _ in range(60):
        variables, load = step(variables)
        loads.append(float(load))
    assert loads[0] > 2
    assert max(loads[-10:]) < 1.25
    assert float(jnp.max(jnp.abs(variables["router_bias"]["router_bias_e"]))) > 0.1


def test_shared_experts_are_added_to_every_token():
    specs = Specs(ffn_in_mf=P(None, None), ffn_gate_mf=P(None, None), ffn_out_fm=P(None, None))
    init = FanInUniform()
    fields = {"specs": specs, "activations": Specs(), "initializer": init, "out_initializer": init}
    shared = FeedForward(model_dim=32, hidden_dim=16, gated=True, activation="silu", **fields)
    module = layer(capacity_factor=None, shared=shared)
    variables = variables_of(module)
    own = {"params": {name: w for name, w in variables["params"].items() if name != "shared"}}
    expected = layer(capacity_factor=None).apply(own, X) + shared.apply({"params": variables["params"]["shared"]}, X)
    assert_equal(module.apply(variables, X), expected)


def test_wrong_factors_are_clear_errors():
    with pytest.raises(UsageError, match=r"receive_factor must be at least 1, or None \(got 0\.5\)"):
        layer(receive_factor=0.5).init(jax.random.key(0), X)
    with pytest.raises(UsageError, match=r"bias_rate = 0\.1 needs routing top_k \(got top2\)"):
        layer(bias_rate=0.1).init(jax.random.key(0), X)


def test_padding_goes_nowhere():
    module = layer(capacity_factor=None, aux_loss=1.0)
    variables = variables_of(module)
    y = module.apply(variables, X, SEGMENTS)
    assert not np.asarray(y[:, 13:]).any()
    np.testing.assert_array_equal(y, module.apply(variables, X.at[:, 13:].set(jnp.nan), SEGMENTS))
