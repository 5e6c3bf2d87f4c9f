"""Tables of segments for cuDNN's kernel; the kernel itself is emulated as its documentation describes it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax._src.cudnn import fused_attention_stablehlo as fused

from layers.attention import cudnn
from layers.attention.blocks import Keys, Scores


@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=3, max_size=3))
def test_runs_are_those_of_each_row(rows):
    rows = [[*row, 21 - sum(row)] for row in rows]
    ids = np.array([np.repeat(np.arange(len(row)) % 2, row) for row in rows])
    lengths, starts, count = (np.asarray(x) for x in cudnn.runs(jnp.asarray(ids), 6))
    assert starts.shape == (len(rows), 7)
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
    ids = jnp.array([[1] * 5 + [2] * 2 + [3] * 4 + [0], [1] * 12, [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 0]])
    sizes = {"query": (4, 12), "key": (2, 12), "value": (2, 12)}  # heads and positions
    arrays = (jax.random.normal(jax.random.key(n), (3, *size, 8)) for n, size in enumerate(sizes.values()))
    query, key, value = arrays
    query = query.swapaxes(1, 2)
    found = cudnn.attend_packed(Scores(causal=causal), 0.3, query, Keys(key, value, ids), ids, 4)
    seen = ids[:, None, :, None] == ids[:, None, None]
    expected = jax.nn.dot_product_attention(
        query, key.swapaxes(1, 2), value.swapaxes(1, 2), mask=seen, scale=0.3, is_causal=causal
    )
    np.testing.assert_allclose(found[:2], expected[:2], atol=1e-6)
    assert np.all(np.isnan(found[2])), "a row of more segments has no numbers"
