"""Tables of segments for cuDNN's kernel; the kernel itself is emulated as its documentation describes it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax._src.cudnn import fused_attention_stablehlo as fused

from layers.attention import cudnn, implementations
from layers.attention.blocks import Keys, Scores
from layers.attention.implementations import recorded
from layers.specs import P, Specs
from tests.layers.attention.test_attention import attention, params_of
from tests.layers.attention.test_context_parallel import ACTIVATIONS, mesh_of, results
from tests.support.programs import compiled_anew


@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=3, max_size=3))
def test_runs_are_those_of_each_row(rows):
    rows = [[*row, 21 - sum(row)] for row in rows]
    ids = np.array([np.repeat(np.arange(len(row)) % 2, row) for row in rows])
    lengths, starts, count = (np.asarray(x) for x in cudnn.runs(jnp.asarray(ids), 6))
    assert starts.shape == (len(rows), 7)
    few = [np.asarray(x) for x in cudnn.runs(jnp.asarray(ids), 2)]
    assert (few[0] >= 0).sum() == (few[1] >= 0).sum(), "as many lengths as positions, or the next row has wrong ones"
    for n, row in enumerate(rows):
        assert count[n] == len(row)
        np.testing.assert_array_equal(lengths[n], [*row, *[-1] * (6 - len(row))])
        np.testing.assert_array_equal(starts[n], [*np.cumsum([0, *row[:-1]]), *[-1] * (7 - len(row))])


def emulated(query, key, value, *, q_seqlen, kv_seqlen, q_offsets, kv_offsets, scale, mask_type):
    """Attention of arrays of all tokens in a row, by the lengths and offsets that cuDNN reads."""
    batch, length, heads, dim = query.shape
    sides = fused._fix_seqlen_offsets(q_seqlen, kv_seqlen, q_offsets, kv_offsets, query, key)
    lengths, _, offsets, key_offsets = (np.asarray(x).reshape(-1) for x in sides)
    q, k, v = (np.asarray(x).reshape(-1, dim) for x in (query, key, value))
    out = np.full(q.shape, 99.0, np.float32)  # what no segment writes
    for count, start, key_start in zip(lengths, offsets, key_offsets, strict=False):
        if count <= 0:
            continue
        row, key_row = start // dim, key_start // dim  # heads of a token are next to each other
        part = lambda x, first, count=count: jnp.asarray(x[first:][: count * heads].reshape(1, count, heads, dim))
        is_causal = mask_type == fused.MaskType.PADDING_CAUSAL
        sides = part(q, row), part(k, key_row), part(v, key_row)
        mixed = jax.nn.dot_product_attention(*sides, scale=scale, is_causal=is_causal)
        out[row : row + count * heads] = np.asarray(mixed).reshape(-1, dim)
    return jnp.asarray(out.reshape(batch, length, heads, dim))


@pytest.mark.parametrize("causal", [True, False])
def test_packed_rows_equal_masked_ones(causal, monkeypatch):
    monkeypatch.setattr(fused, "dot_product_attention", emulated)
    ids = jnp.array([[1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 0], [1] * 5 + [2] * 2 + [3] * 4 + [0], [1] * 12])
    heads = {"query": 4, "key": 2, "value": 2}.values()
    query, key, value = (jax.random.normal(jax.random.key(n), (3, size, 12, 8)) for n, size in enumerate(heads))
    query = query.swapaxes(1, 2)
    found = cudnn.attend_packed(Scores(causal=causal), 0.3, query, Keys(key, value, ids), ids, 4, Specs())
    seen = ids[:, None, :, None] == ids[:, None, None]
    expected = jax.nn.dot_product_attention(
        query, key.swapaxes(1, 2), value.swapaxes(1, 2), mask=seen, scale=0.3, is_causal=causal
    )
    assert np.all(np.isnan(found[0])), "a row of more segments has no numbers"
    np.testing.assert_allclose(found[1:], expected[1:], atol=1e-6)


def by_tables(query, key, value, *, q_seqlen, kv_seqlen, q_offsets, kv_offsets, scale, mask_type):
    """The same with a mask, so that it has a gradient."""
    assert query.shape[2] == key.shape[2]

    def numbers(lengths, offsets, x):
        begins = (offsets[:, :, None] >= 0) & (jnp.arange(x.shape[1]) >= offsets[:, :, None])
        number = jnp.sum(begins, axis=1) - 1
        first, length = (jnp.take_along_axis(table, number, axis=1) for table in (offsets, lengths))
        return jnp.where(jnp.arange(x.shape[1]) < first + length, number, -1)

    queries, keys = numbers(q_seqlen, q_offsets, query), numbers(kv_seqlen, kv_offsets, key)
    mask = queries[:, None, :, None] == keys[:, None, None]
    is_causal = mask_type == fused.MaskType.PADDING_CAUSAL
    return jax.nn.dot_product_attention(query, key, value, mask=mask, scale=scale, is_causal=is_causal)


QUERIES = P("data", "sequence", "model", None)
FEW_KEYS = Specs(query_bsnd=QUERIES, key_bskd=P("data", None, None, None), value_bskd=P("data", None, None, None))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "activations", "kv_heads", "exchange"),
    [((1, 1, 1), Specs(), 2, None), ((2, 1, 4), FEW_KEYS, 1, None), ((2, 2, 2), ACTIVATIONS, 4, "all_to_all")],
)
def test_a_layer_with_packed_rows(shape, activations, kv_heads, exchange, monkeypatch):
    """On meshes: each device reads where the segments of its own rows begin."""
    monkeypatch.setattr(fused, "dot_product_attention", by_tables)
    monkeypatch.setattr(implementations, "target_platform", lambda: "gpu")
    monkeypatch.setattr(implementations, "_has_packed_rows", lambda: True)
    fields = {"num_kv_heads": kv_heads, "head_dim": 8, "dtype": "bfloat16", "max_segments": 3}
    ids = jnp.array([[1] * 5 + [2] * 2 + [3] * 9, [1] * 16, [1] * 3 + [2] * 13, [1] * 8 + [2] * 6 + [0] * 2])
    x = jax.random.normal(jax.random.key(0), (4, 16, 16))
    variables = params_of(attention(**fields), x[:, :1])
    expected = results(attention(**fields, implementation="dense"), variables, x, ids, None)
    with jax.set_mesh(mesh_of(*shape)), recorded() as decisions, compiled_anew():
        found = results(attention(**fields, activations=activations), variables, x, ids, None)
    assert {(one.implementation, one.exchange) for one in decisions} == {("cudnn", exchange)}
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(a, b, atol=0.02 * float(jnp.max(jnp.abs(a))))
