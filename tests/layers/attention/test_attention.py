import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core import meta

from layers.attention.softmax import Attention
from layers.errors import UsageError
from layers.positions.embeddings import SinusoidalPositions, rotate
from layers.specs import Specs
from layers.weights.initializers import Constant, FanIn
from registry.templates.decoder import DecoderLm

SPECS = DecoderLm().specs.of(Attention)


def attention(**fields):
    base = {"model_dim": 16, "num_heads": 4, "num_kv_heads": 4, "head_dim": 4}
    init = {"initializer": FanIn(), "out_initializer": FanIn()}
    return Attention(**{"specs": SPECS, "activations": Specs(), **base, **init, **fields})


def params_of(module, x):
    return meta.unbox(module.init(jax.random.key(1), x))


@pytest.fixture
def x():
    return jax.random.normal(jax.random.key(0), (2, 10, 16))


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("causal", [True, False])
def test_equals_jax_dot_product_attention(x, kv_heads, causal):
    module = attention(num_kv_heads=kv_heads, causal=causal)
    variables = params_of(module, x)
    w = variables["params"]
    q, k, v = (jnp.einsum("bsm,mhd->bshd", x, w[name]) for name in ("query_mnd", "key_mkd", "value_mkd"))
    mixed = jax.nn.dot_product_attention(q, k, v, is_causal=causal)
    expected = jnp.einsum("bsnd,ndm->bsm", mixed, w["attention_out_ndm"])
    np.testing.assert_allclose(module.apply(variables, x)[0], expected, atol=1e-5)


def test_scale_is_on_the_scores(x):
    variables = params_of(attention(), x)
    np.testing.assert_allclose(
        attention(scale=0.5).apply(variables, x)[0], attention().apply(variables, x)[0], atol=1e-5
    )
    assert not np.allclose(attention(scale=1.0).apply(variables, x)[0], attention().apply(variables, x)[0], atol=1e-3)


@pytest.mark.parametrize("norm", ["rms", "l2"])
def test_zero_queries_have_finite_gradients(x, norm):
    module = attention(qk_norm=norm, query_initializer=Constant())
    variables = params_of(module, x)
    assert not np.any(variables["params"]["query_mnd"])
    gradient = jax.grad(lambda variables: jnp.sum(module.apply(variables, x)[0] ** 2))(variables)
    assert all(np.all(np.isfinite(each)) for each in jax.tree.leaves(gradient))
    assert np.any(gradient["params"]["query_mnd"])


def test_segments_do_not_see_each_other(x):
    module = attention()
    variables = params_of(module, x)
    ids = jnp.array([[1] * 4 + [2] * 6] * 2)
    together, _ = module.apply(variables, x, None, ids)
    separate = [module.apply(variables, part)[0] for part in (x[:, :4], x[:, 4:])]
    np.testing.assert_allclose(together, jnp.concatenate(separate, axis=1), atol=1e-5)


def test_causality_by_jacobian(x):
    module = attention(rotary_base=100.0)
    variables = params_of(module, x)
    jacobian = jax.jacobian(lambda x: module.apply(variables, x[None])[0][0].sum(-1))(x[0])
    influence = np.abs(jacobian).sum(-1)
    assert np.all(np.triu(influence, 1) == 0)
    assert np.all(np.tril(influence)[np.tril_indices(10)] > 0)


def test_rotary_turns_by_position_times_frequency():
    x = jnp.zeros((1, 1, 1, 4)).at[..., 0].set(1.0).at[..., 1].set(1.0)
    y = rotate(x, jnp.array([[3]]), base=100.0)[0, 0, 0]
    np.testing.assert_allclose(y, [np.cos(3), np.cos(0.3), np.sin(3), np.sin(0.3)], atol=1e-6)


def test_rotary_scores_depend_on_distance_alone():
    q, k = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 8))
    score = lambda i, j: float((rotate(q, jnp.array([[i]]), 1e4) * rotate(k, jnp.array([[j]]), 1e4)).sum())
    assert score(7, 3) == pytest.approx(score(104, 100), abs=1e-4)
    assert score(7, 3) != pytest.approx(score(7, 4), abs=1e-4)


def test_sinusoidal_by_hand():
    y = SinusoidalPositions(model_dim=4, base=100.0).apply({}, jnp.array([[2]]))[0, 0]
    np.testing.assert_allclose(y, [np.sin(2), np.sin(0.2), np.cos(2), np.cos(0.2)], atol=1e-6)


def test_heads_must_divide(x):
    with pytest.raises(UsageError, match="num_kv_heads must divide num_heads = 4"):
        attention(num_kv_heads=3).init(jax.random.key(0), x)


def test_no_state_without_causality(x):
    module = attention(causal=False)
    with pytest.raises(UsageError, match="not causal has no decoding state"):
        module.apply(params_of(module, x), x, module.init_state(2, 10))


def test_dropout_is_on_only_with_random_numbers(x):
    module = attention(dropout_rate=0.5)
    variables = params_of(module, x)
    plain = module.apply(variables, x)[0]
    np.testing.assert_array_equal(plain, attention().apply(variables, x)[0])
    drawn = [module.apply(variables, x, rngs={"dropout": jax.random.key(i)})[0] for i in (0, 0, 1)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert not np.allclose(drawn[0], drawn[2])
