import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from layers.errors import UsageError
from layers.feed_forward.activations import activation
from layers.norm import LayerNorm, RMSNorm
from layers.specs import P, Specs

SPECS = Specs(norm_scale_m=P(None), norm_bias_m=P(None))


@pytest.mark.parametrize(
    ("name", "at", "value"),
    [
        ("relu", -1.0, 0.0),
        ("squared_relu", 3.0, 9.0),
        ("gelu_tanh", 1.0, 0.8411919906),
        ("gelu_erf", 1.0, 0.8413447461),
        ("silu", 1.0, 0.7310585786),
    ],
)
def test_values(name, at, value):
    np.testing.assert_allclose(activation(name)(jnp.float32(at)), value, rtol=1e-6)


def test_unknown_activation():
    with pytest.raises(UsageError, match=r"Unknown activation 'gelu'.*'gelu_"):
        activation("gelu")


def test_rms_norm_by_hand():
    x = jnp.array([[3.0, 4.0]])
    y = RMSNorm(specs=SPECS, epsilon=0.0).apply({"params": {"norm_scale_m": jnp.array([1.0, 2.0])}}, x)
    np.testing.assert_allclose(y, [[3 / 12.5**0.5, 8 / 12.5**0.5]], rtol=1e-6)


def test_one_plus_a_weight_is_the_factor():
    x = jax.random.normal(jax.random.key(0), (2, 8))
    module = RMSNorm(specs=SPECS, one_plus_scale=True)
    params = nn.meta.unbox(module.init(jax.random.key(1), x))
    np.testing.assert_array_equal(params["params"]["norm_scale_m"], 0)
    w = jnp.arange(8.0)
    expected = RMSNorm(specs=SPECS).apply({"params": {"norm_scale_m": 1 + w}}, x)
    np.testing.assert_allclose(module.apply({"params": {"norm_scale_m": w}}, x), expected, rtol=1e-6)


@pytest.mark.parametrize("norm", [LayerNorm, RMSNorm])
def test_a_single_row_has_the_outputs_and_gradients_of_a_batch(norm):
    x = jax.random.normal(jax.random.key(0), (2, 3, 8)) * 5 + 1
    module = norm(specs=SPECS)
    params = nn.meta.unbox(module.init(jax.random.key(1), x))
    gradient = jax.grad(lambda params, x: jnp.sin(module.apply(params, x)).sum(), argnums=(0, 1))
    rows = [gradient(params, row[None]) for row in x]
    expected = gradient(params, x)
    for a, b in zip(
        jax.tree.leaves(jax.tree.map(jnp.add, rows[0][0], rows[1][0])), jax.tree.leaves(expected[0]), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    np.testing.assert_allclose(jnp.concatenate([row[1] for row in rows]), expected[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm_equals_linens(scale, bias):
    x = jax.random.normal(jax.random.key(0), (2, 3, 8)) * 5 + 1
    ours = LayerNorm(specs=SPECS, epsilon=1e-3, use_scale=scale, use_bias=bias)
    params = nn.meta.unbox(ours.init(jax.random.key(1), x)).get("params", {})
    theirs = nn.LayerNorm(epsilon=1e-3, use_scale=False, use_bias=False)
    np.testing.assert_allclose(ours.apply({"params": params}, x), theirs.apply({}, x), atol=1e-5)
    assert len(params) == scale + bias


def test_statistics_are_float32_under_bfloat16():
    x = (jnp.ones((1, 4096)) * 256).astype(jnp.bfloat16)
    y = RMSNorm(specs=SPECS, use_scale=False).apply({}, x)
    assert y.dtype == jnp.bfloat16
    np.testing.assert_allclose(y.astype(jnp.float32), 1.0, atol=1e-2)
