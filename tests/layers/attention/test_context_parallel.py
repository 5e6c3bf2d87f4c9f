"""Attention of rows that a mesh axis splits: numbers of one device, exchanges and work of closed forms."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from layers.attention.blocks import Others, Scores
from layers.attention.context_parallel import exchange_of
from layers.attention.exchanges import Gather, Ring, Sizes
from layers.attention.implementations import RING_FROM, choose, recorded
from layers.errors import UsageError
from layers.positions.alibi import Alibi
from layers.specs import P, Specs
from runners.planner.programs.hlo import collective_totals
from tests.layers.attention.test_attention import attention, params_of
from tests.layers.attention.test_blockwise import RELATIVE
from tests.layers.attention.test_implementations import PLAIN, chosen
from tests.support.programs import compiled_anew

ROW = P("data", "sequence", "model", None)
ACTIVATIONS = Specs(query_bsnd=ROW, key_bskd=ROW, value_bskd=ROW)


def mesh_of(*shape):
    devices = jax.devices()[: int(np.prod(shape))]
    kinds = (jax.sharding.AxisType.Auto,) * 3
    return jax.make_mesh(shape, ("data", "sequence", "model"), devices=devices, axis_types=kinds)


def results(layer, variables, x, ids, rngs):
    apply = lambda *given: layer.apply(*given, None, ids, rngs=rngs)[0]
    loss = lambda *given: jnp.sum(jnp.sin(apply(*given)))
    return jax.jit(lambda *given: (apply(*given), jax.grad(loss, argnums=(0, 1))(*given)))(variables, x)


CASES = {
    "ring of two": ((1, 2, 1), "ring", {}),
    "ring of eight, one head of keys": ((1, 8, 1), "ring", {"num_kv_heads": 1, "extra_logit": 0.0}),
    "ring, packed rows, all axes": ((2, 2, 2), "ring", {"packed": True, "num_kv_heads": 2, "softcap": 2.0}),
    "ring, fewer heads of keys than devices": ((1, 2, 4), "ring", {"num_kv_heads": 2}),
    "ring, window": ((1, 4, 2), "ring", {"window": 6, "packed": True}),
    "ring, window of almost all": ((1, 4, 1), "ring", {"window": 33}),
    "ring, not causal": ((2, 4, 1), "ring", {"causal": False}),
    "ring, ALiBi": ((1, 4, 2), "ring", {"relative_bias": Alibi(num_heads=4)}),
    "ring, learned bias, padded heads": ((1, 4, 2), "ring", {"relative_bias": RELATIVE, "padded_heads": 6}),
    "ring, dropout": ((2, 2, 2), "ring", {"dropout_rate": 0.3, "length": 32}),
    "ring, other scores": ((1, 2, 1), "ring", {"score_function": "squared_relu", "score_length": 8}),
    "ring, odd halves": ((1, 4, 1), "ring", {"length": 36}),
    "all-gather": ((1, 4, 2), "all_gather", {"packed": True}),
    "all-gather, not causal": ((2, 4, 1), "all_gather", {"causal": False}),
    "all-gather, odd halves": ((1, 4, 1), "all_gather", {"length": 36}),
    "all-to-all": ((2, 2, 2), "all_to_all", {"packed": True}),
    "all-to-all, blockwise with a window": ((1, 4, 1), "all_to_all", {"window": 6, "implementation": "blockwise"}),
}
QUICK = (
    "ring, packed rows, all axes",
    "ring, window",
    "ring, learned bias, padded heads",
    "ring, dropout",
    "all-gather",
)


@pytest.mark.parametrize(
    "case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
)
def test_outputs_and_gradients_are_those_of_one_device(case):
    shape, exchange, fields = CASES[case]
    fields = {"block_size": 4, "scale": 1.0, **fields}
    length, is_packed = fields.pop("length", 40), fields.pop("packed", False)
    x = jax.random.normal(jax.random.key(0), (2, length, 16))
    ids = jnp.where(jnp.arange(length) < 13, 1, 2)[None].repeat(2, axis=0) if is_packed else None
    rngs = {"dropout": jax.random.key(5)} if "dropout_rate" in fields else None
    one = attention(**{"implementation": "blockwise", **fields})
    variables = params_of(one, x)
    expected = results(one, variables, x, ids, rngs)
    split = attention(activations=ACTIVATIONS, context_parallel=exchange, **fields)
    with jax.set_mesh(mesh_of(*shape)), recorded() as decisions, compiled_anew():
        placed = jax.device_put(x, jax.NamedSharding(jax.sharding.get_mesh(), P("data", "sequence", None)))
        found = results(split, variables, placed, ids, rngs)
    assert {one.exchange for one in decisions} == {exchange}
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=5e-6 * max(1.0, np.max(np.abs(other))))


def program(exchange, parts, length=64, **fields):
    """Returns the compiled update of one layer, and its mesh."""
    layer = attention(activations=ACTIVATIONS, context_parallel=exchange, **{"block_size": 4, **fields})
    mesh = mesh_of(1, parts, 1)
    with jax.set_mesh(mesh):
        placed = jax.NamedSharding(mesh, P("data", "sequence", None))
        x = jax.ShapeDtypeStruct((2, length, 16), jnp.float32, sharding=placed)
        variables = jax.eval_shape(functools.partial(params_of, layer), x)
        loss = lambda variables, x: jnp.sum(jnp.sin(layer.apply(variables, x)[0]))
        return jax.jit(jax.grad(loss, argnums=(0, 1))).lower(variables, x).compile(), dict(mesh.shape)


@pytest.mark.parametrize("parts", [4, 8])
@pytest.mark.parametrize("exchange", ["ring", "all_gather", "all_to_all"])
def test_bytes_of_exchanges_are_those_of_closed_forms(exchange, parts):
    """With queries of q bytes on each of n devices, keys and values together of kv.

    Chunks of both ends of a row: q, outputs of q and, in a ring, kv are exchanged, and their gradients. Ring: kv n - 1
    times in the forward pass; in the backward pass again, with its gradients. All-gather: kv of the other devices, and
    the sum of its gradients. All-to-all: the share of the others in q, kv, outputs, and their gradients. Both passes
    are in one computation here: what both do first, the compiler does once.
    """
    kv_heads = 8 if exchange == "all_to_all" else 2
    compiled, mesh = program(exchange, parts, num_heads=8, num_kv_heads=kv_heads)
    q, kv = (2 * 64 // parts * heads * 4 * 4 for heads in (8, 2 * kv_heads))
    expected = {
        "ring": {"collective-permute": 2 * (2 * q + kv) + (3 * (parts - 1) - 1) * kv},
        "all_gather": {
            "collective-permute": 4 * q,
            "all-gather": (parts - 1) * kv,
            "reduce-scatter": (parts - 1) * kv,
        },
        "all_to_all": {"all-to-all": 2 * (2 * q + kv) * (parts - 1) // parts},
    }
    totals = collective_totals(compiled.as_text(), mesh)
    assert {one.axis for one in totals} == {"sequence"}
    found = {one.kind: one.bytes for one in totals if one.kind != "all-reduce"}  # which sums gradients of weights
    assert found == expected[exchange]


def test_temporary_memory_falls_with_the_devices():
    """Of one layer's update, in rows of 64k positions."""
    memory = {n: program("ring", n, 65_536, block_size=64)[0].memory_analysis().temp_size_in_bytes for n in (4, 8)}
    assert memory[8] < 1.02 * memory[4] / 2


@pytest.mark.parametrize("kind", [Ring, Gather])
@pytest.mark.parametrize("parts", [2, 3, 8])
def test_devices_compute_each_pair_of_blocks_once_and_as_many_each(kind, parts):
    sizes = Sizes(queries=2 * 12, block=4, causal=True, window=None)
    exchange = kind(axis="sequence", parts=parts, in_pairs=True)
    computed = []
    for shard in range(parts):
        number = jnp.int32(shard)
        places = exchange.places(sizes, number)
        steps = [places] if kind is Gather else [places(0), *(places(jnp.int32(i)) for i in range(1, parts))]
        starts = np.asarray(exchange.query_starts(Others(shard=number), sizes.queries))
        first = lambda starts, block: np.asarray(starts)[block // 3] + block % 3 * 4
        pairs = [(at.key_starts, i, j) for at in steps for i, j in np.stack(at.pairs, axis=1)]
        computed.append([(first(starts, i), first(key_starts, j)) for key_starts, i, j in pairs])
    assert len(set(map(len, computed))) == 1
    rows = range(0, parts * sizes.queries, 4)
    assert sorted(pair for each in computed for pair in each) == [(q, t) for q in rows for t in rows if t <= q]
    if kind is Ring:
        assert exchange.scores(sizes) == 4 * 4 * len(computed[0])


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (Scores(), (True, 3)),
        (Scores(window=9), (False, 1)),  # keys of the last eight positions are on one device
        (Scores(window=10), (False, 2)),
        (Scores(window=18), (True, 3)),
        (Scores(window=64), (True, 3)),
        (Scores(causal=False), (False, 3)),
    ],
)
def test_rows_are_in_pairs_of_chunks_if_that_saves_scores(how, expected):
    with jax.sharding.use_abstract_mesh(mesh_of(1, 4, 1).abstract_mesh):
        for kind in ("ring", "all_gather"):
            exchange = exchange_of(kind, how, 4, 32, ACTIVATIONS)
            if isinstance(exchange, Ring):
                assert (exchange.in_pairs, exchange.steps(Sizes.of(how, 8, 4))) == expected
            else:
                assert exchange.in_pairs == expected[0]
                assert how.window is None or exchange.in_pairs


def test_a_cache_is_read_without_exchanges():
    x = jax.random.normal(jax.random.key(0), (2, 8, 16))
    one, split = attention(), attention(activations=ACTIVATIONS, context_parallel="ring")
    variables = params_of(one, x)
    expected, _ = one.apply(variables, x, one.init_state(2, 8))
    with jax.set_mesh(mesh_of(1, 2, 1)), recorded() as decisions:
        found, _ = jax.jit(split.apply)(variables, x, split.init_state(2, 8))
    assert decisions[0].exchange is None
    np.testing.assert_allclose(found, expected, atol=1e-6)


SPLIT = dataclasses.replace(PLAIN, parts=4)


@pytest.mark.parametrize(
    ("call", "platform", "expected"),
    [
        (SPLIT, "gpu", ("cudnn", "all_to_all")),
        (dataclasses.replace(SPLIT, heads_divide=False), "gpu", ("blockwise", "all_gather")),
        (SPLIT, "cpu", ("blockwise", "all_gather")),
        (dataclasses.replace(SPLIT, keys=RING_FROM, queries=RING_FROM), "cpu", ("blockwise", "ring")),
        (dataclasses.replace(SPLIT, bias="matrix"), "cpu", ("dense", None)),
        (dataclasses.replace(SPLIT, has_state=True), "cpu", ("blockwise", None)),
        (PLAIN, "cpu", ("blockwise", None)),
    ],
)
def test_auto(call, platform, expected):
    decision = chosen(call, platform)
    assert (decision.implementation, decision.exchange) == expected


def test_an_exchange_that_cannot_be_is_refused():
    with pytest.raises(UsageError, match="CONTEXT_PARALLEL = all_to_all splits heads over the devices"):
        choose("auto", dataclasses.replace(SPLIT, heads_divide=False), "mixer", "all_to_all")
    with pytest.raises(UsageError, match="CONTEXT_PARALLEL = ring moves keys, which ATTENTION_IMPLEMENTATION = cudnn"):
        chosen(SPLIT, "gpu", "cudnn", "ring")
