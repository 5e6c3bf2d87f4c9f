"""Blockwise attention equals dense attention, in outputs and gradients, and leaves out blocks that no query sees."""

import dataclasses
import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layers.attention.block_pairs import Places, block_pairs
from layers.attention.blocks import Blocks, Keys, Others, Queries, Scores
from layers.attention.blockwise import attend
from layers.attention.exchanges import Alone
from layers.attention.implementations import QUERY_PARTS
from layers.attention.softmax import Attention
from layers.positions.alibi import Alibi
from layers.positions.relative_bias import RelativeBias
from layers.specs import P, Specs
from layers.weights.initializers import FanIn
from registry.templates.gshard_lm import GShardLm
from runners.flops import matmul_flops
from tests.layers.attention.test_attention import attention, params_of

RELATIVE = RelativeBias(
    specs=Specs(relative_bias_nr=P(None, None)), num_heads=4, num_buckets=8, max_distance=10, initializer=FanIn()
)
OPTIONS = st.fixed_dictionaries(
    {
        "num_kv_heads": st.sampled_from([1, 2, 4]),
        "mask": st.sampled_from([{}, {"window": 1}, {"window": 5}, {"causal": False}]),
        "weights": st.sampled_from(
            [{}, {"extra_logit": 0.0}, {"score_function": "squared_relu", "score_length": 8}]
            + [{"score_function": f"normalized_{name}"} for name in ("squared_relu", "elu_plus_1")]
        ),
        "softcap": st.sampled_from([None, 1.5]),
        "relative_bias": st.sampled_from([None, Alibi(num_heads=4), RELATIVE]),
        "padded": st.booleans(),
        "block_size": st.sampled_from([3, 4, 8, 64]),
    }
)


def layer_of(options, **fields) -> Attention:
    given = {name: value for name, value in options.items() if name not in ("mask", "weights", "padded")}
    if options["padded"] and given["num_kv_heads"] in (1, 4):
        fields |= {"padded_heads": 6, "specs": GShardLm().specs, "merged_heads": True}
    return attention(**given, **options["mask"], **options["weights"], scale=1.0, **fields)


def results_of(options, length, boundary, implementation):
    """Returns outputs and gradients of a layer for rows with a second segment from `boundary` on."""
    x = jax.random.normal(jax.random.key(0), (2, length, 16))
    ids = None if boundary is None else jnp.where(jnp.arange(length) < boundary, 1, 2)[None].repeat(2, axis=0)
    layer = layer_of(options, implementation=implementation)
    loss = lambda *given: jnp.sum(jnp.sin(layer.apply(*given, None, ids)[0]))
    both = lambda *given: (layer.apply(*given, None, ids)[0], jax.grad(loss, argnums=(0, 1))(*given))
    return jax.jit(both)(params_of(layer_of(options), x), x)


def are_close(found, expected):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * max(1.0, np.max(np.abs(other))))


@settings(max_examples=20)
@given(options=OPTIONS, length=st.sampled_from([7, 16]), boundary=st.sampled_from([None, 5]))
def test_outputs_and_gradients_equal_those_of_dense_attention(options, length, boundary):
    results = functools.partial(results_of, options, length, boundary)
    are_close(results("blockwise"), results("dense"))


@settings(max_examples=20)
@given(options=OPTIONS, boundary=st.sampled_from([None, 5]), parts=st.sampled_from([2, 4]))
def test_parts_of_the_queries_equal_dense_attention_of_all(options, boundary, parts):
    with mock.patch.dict(QUERY_PARTS, {0: parts}):
        found = results_of(options, 16, boundary, "dense")
    are_close(found, results_of(options, 16, boundary, "dense"))


def test_two_parts_of_the_queries_leave_out_a_quarter_of_the_pairs():
    x, layer = jnp.zeros((1, 512, 16)), attention()
    variables = params_of(layer, x[:, :2])
    flops = lambda: matmul_flops(lambda variables, x: layer.apply(variables, x)[0], variables, x)
    in_parts = flops()
    with mock.patch.dict(QUERY_PARTS, {256: 1}):
        pairs = 2 * 2 * 512 * 512 * layer.num_heads * layer.head_dim
        assert flops() - in_parts == pairs // 4


def test_dropout_drops_the_same_weights_in_both_passes():
    shape = (2, 2, 2, 16, 4)  # (b, k, g, s, d)
    query, key, value = (jax.random.normal(jax.random.key(i), s) for i, s in enumerate((shape, *[(2, 2, 16, 4)] * 2)))
    how, others = (
        Scores(dropout_rate=0.25),
        Others(dropout_keys=jax.random.bits(jax.random.key(3), (2, 2, 2), "uint32")),
    )
    found = lambda query, *keys: attend(how, Alone(), 8, query, Keys(*keys), None, others)
    queries = Queries(query, 8, [0], None)
    blocks = Blocks(how, 8, queries, Keys(key, value), others, Places([0], ()))
    halves = (jnp.int32(0), jnp.int32(1))
    kept = jnp.concatenate(
        [jnp.concatenate([blocks.kept(i, j, (2, 2, 16, 8)) for j in halves], axis=-1)[None] for i in halves]
    )
    kept = queries.join_groups(kept)
    assert 0.2 < 1 - kept.mean() < 0.3

    def expected(query, key, value):
        scores = jnp.where(jnp.tri(16, dtype=bool), jnp.einsum("bkgqd,bktd->bkgqt", query, key), -jnp.inf)
        return jnp.einsum("bkgqt,bktd->bkgqd", jnp.where(kept, jax.nn.softmax(scores) / 0.75, 0), value)

    for one, other in zip(*(_with_gradients(f, query, key, value) for f in (found, expected)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def _with_gradients(function, *arrays):
    return function(*arrays), *jax.grad(lambda *a: jnp.sum(jnp.sin(function(*a))), argnums=(0, 1, 2))(*arrays)


@pytest.mark.parametrize("window", [None, 1, 6, 20])
@pytest.mark.parametrize(("queries", "start"), [(16, 0), (5, 11), (7, 9)])
def test_pairs_are_those_in_which_a_query_sees_a_key(window, queries, start):
    rows, columns = block_pairs(queries, 16, (4, 3), causal=True, window=window, start=start)
    distance = start + np.arange(queries)[:, None] - np.arange(16)
    seen = (distance >= 0) & (distance < (window or 99))
    expected = {(q // 4, t // 3) for q, t in np.argwhere(seen)}
    assert list(zip(rows.tolist(), columns.tolist(), strict=True)) == sorted(expected)


def test_counted_products_fall_with_causality_and_the_window():
    """Of 16 x 16 pairs of blocks: all, those of the lower triangle, those in three diagonals."""
    x = jax.ShapeDtypeStruct((1, 64, 16), jnp.float32)

    def products(**fields):
        layer = attention(implementation="blockwise", block_size=4, **fields)
        variables = jax.eval_shape(functools.partial(params_of, layer), x)
        loss = lambda variables, x: layer.apply(variables, x)[0].sum()
        return matmul_flops(jax.grad(loss, argnums=(0, 1)), variables, x)

    pair = (2 + 5) * 2 * 4 * 4 * 4 * 4  # 7 products of 4 queries, 4 keys and 4 channels in 4 heads
    projections = products(causal=False) - 256 * pair
    assert projections == 3 * 4 * 2 * 64 * 16 * 16
    assert products() - projections == 136 * pair
    assert products(window=8) - projections == (16 + 15 + 14) * pair


def test_a_prompt_in_a_cache_equals_dense_attention():
    x = jax.random.normal(jax.random.key(0), (2, 12, 16))
    variables = params_of(attention(), x)
    for fields in ({}, {"window": 4}):
        layers = [attention(**fields, implementation=name, block_size=4) for name in ("blockwise", "dense")]
        for cut in (3, 8):
            outputs = []
            for layer in layers:
                first, state = jax.jit(layer.apply)(variables, x[:, :cut], layer.init_state(2, 14))
                second, _ = jax.jit(layer.apply)(variables, x[:, cut:], state)
                outputs.append(jnp.concatenate([first, second], axis=1))
            np.testing.assert_allclose(*outputs, atol=1e-6)


def test_bfloat16_is_as_close_to_float32_as_dense_attention():
    x = jax.random.normal(jax.random.key(0), (2, 64, 16))
    variables = params_of(attention(), x)
    apply = lambda **fields: attention(block_size=16, **fields).apply(variables, x)[0].astype(jnp.float32)
    exact = apply(implementation="dense")
    blockwise, dense = (
        np.sqrt(np.mean((apply(implementation=name, dtype="bfloat16") - exact) ** 2)) for name in ("blockwise", "dense")
    )
    assert blockwise < 1.2 * dense


def test_what_becomes_of_scores_is_hashable():
    assert hash(Scores()) == hash(dataclasses.replace(Scores()))


def test_temporary_memory_of_a_token_does_not_grow_with_the_length():
    """Of an update, from 4k to 64k positions; that of dense attention grows sixteenfold.

    The layers are in a loop, because JAX moves what does not depend on them out of it: masks of packed rows, biases.
    """

    def of_a_token(implementation, length):
        layer = attention(implementation=implementation, relative_bias=Alibi(num_heads=4))
        x = jax.ShapeDtypeStruct((65_536 // length, length, 16), jnp.float32)
        variables = jax.eval_shape(lambda x: jax.vmap(lambda _: params_of(layer, x))(jnp.arange(3)), x)
        ids = jax.ShapeDtypeStruct(x.shape[:2], jnp.int32)

        def loss(variables, x, ids):
            block = jax.checkpoint(lambda x, variables: (layer.apply(variables, x, None, ids)[0], None))
            return jnp.sum(jax.lax.scan(block, x, variables)[0])

        compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(variables, x, ids).compile()
        return compiled.memory_analysis().temp_size_in_bytes / 65_536

    growth = lambda implementation: of_a_token(implementation, 65_536) / of_a_token(implementation, 4096)
    assert growth("blockwise") < 1.1
    assert growth("dense") > 15
