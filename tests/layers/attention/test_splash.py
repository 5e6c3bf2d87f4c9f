"""Splash attention equals dense attention, on one device and on several; its program by the compiler of TPUs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from layers.attention import implementations, splash
from layers.attention.implementations import recorded
from layers.specs import P, Specs
from tests.layers.attention.test_attention import attention, params_of
from tests.layers.attention.test_context_parallel import ACTIVATIONS, mesh_of, results
from tests.support.programs import compiled_anew


@pytest.fixture
def interpreted(monkeypatch):
    """The kernel as JAX operations, and layers that are traced for a TPU."""
    make = functools.partial(splash.kernels.make_splash_mha, interpret=True)
    monkeypatch.setattr(splash.kernels, "make_splash_mha", make)
    monkeypatch.setattr(implementations, "target_platform", lambda: "tpu")
    monkeypatch.setattr(implementations, "target_device_kind", lambda: "TPU v5 lite")


CASES = {
    "window, cap, groups, segments": {"window": 100, "softcap": 1.5, "num_kv_heads": 2, "packed": True},
    "extra logit, cap, one head of keys": {"extra_logit": 0.0, "softcap": 1.5, "num_kv_heads": 1},
    "not causal, segments": {"causal": False, "packed": True},
}


@pytest.mark.parametrize(
    "case", [case if case.startswith("window") else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
)
def test_outputs_and_gradients_equal_those_of_dense_attention(case, interpreted):
    fields = {**CASES[case], "scale": 1.0, "block_size": 300}
    ids = jnp.where(jnp.arange(256) < 70, 1, 2)[None].repeat(2, axis=0) if fields.pop("packed", False) else None
    x = jax.random.normal(jax.random.key(0), (2, 256, 16))
    variables = params_of(attention(**fields, implementation="dense"), x[:, :8])
    expected = results(attention(**fields, implementation="dense"), variables, x, ids, None)
    with recorded() as decisions:
        found = results(attention(**fields), variables, x, ids, None)
    assert {one.implementation for one in decisions} == {"splash"}
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * float(jnp.max(jnp.abs(a))))


SPLIT = Specs(value_bskd=P("data", None, "model", None))
FEW_KEYS = Specs(query_bsnd=P("data", None, "model", None), value_bskd=P("data", None, None, None))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "activations", "kv_heads", "exchange"),
    [
        ((2, 1, 4), SPLIT, 2, None),  # fewer heads of keys than devices
        ((1, 2, 4), FEW_KEYS, 1, None),
        ((2, 2, 2), ACTIVATIONS, 4, "all_to_all"),
    ],
)
def test_on_several_devices(shape, activations, kv_heads, exchange, interpreted, monkeypatch):
    fields = {"num_kv_heads": kv_heads, "scale": 1.0, "block_size": 128}
    ids = jnp.where(jnp.arange(256) < 70, 1, 2)[None].repeat(2, axis=0)
    x = jax.random.normal(jax.random.key(0), (2, 256, 16))
    variables = params_of(attention(**fields), x[:, :8])
    expected = results(attention(**fields, implementation="dense"), variables, x, ids, None)
    heads = set()
    run = splash._kernel
    monkeypatch.setattr(splash, "_kernel", lambda *given: heads.add(given[3]) or run(*given))
    with jax.set_mesh(mesh_of(*shape)), recorded() as decisions, compiled_anew():
        found = results(attention(**fields, activations=activations), variables, x, ids, None)
    assert heads == {1}, "each device has one of four heads"
    assert {(one.implementation, one.exchange) for one in decisions} == {("splash", exchange)}
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * float(jnp.max(jnp.abs(a))))


@given(window=st.integers(1, 40), block=st.sampled_from([4, 8, 16]))
def test_masks_of_blocks_are_those_of_single_pairs(window, block):
    shape = (32, 32)
    pairs = [
        (splash._Causal(shape), masks.CausalMask(shape)),
        (splash._Window(shape, (window - 1, 0), 0), masks.LocalMask(shape, (window - 1, 0), 0)),
    ]
    sides = [slice(start, start + block) for start in range(0, 32, block)]
    for quick, slow in pairs:
        for rows in sides:
            for columns in sides:
                np.testing.assert_array_equal(quick[rows, columns], slow[rows, columns])
