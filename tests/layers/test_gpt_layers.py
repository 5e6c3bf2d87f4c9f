"""ALiBi, the static SGU and head-QK against their formulas, written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from layers.attention.static_sgu import StaticSguMixer
from layers.errors import UsageError
from layers.head_qk import PointedFeatures
from layers.positions.alibi import Alibi, alibi_slopes
from layers.specs import Specs
from registry.build import build
from registry.templates.gpt_lm import GptLm
from tests.layers.attention.test_attention import attention, params_of
from tests.support.references.models import variables_of

POINTING = {"NUM_LAYERS": 1, "MODEL_DIM": 16, "NUM_HEADS": 4, "VOCAB_SIZE": 40, "SEQ_LEN": 12, "HEAD_QK": 8}
POINTING |= {"DATA": "synthetic", "DTYPE": "float32", "DROPOUT": 0.0}


@pytest.mark.parametrize(
    ("heads", "powers"),
    [
        (8, range(1, 9)),
        (6, (2, 4, 6, 8, 1, 3)),
        (12, (*range(1, 9), 0.5, 1.5, 2.5, 3.5)),
        (16, np.arange(1, 17) / 2),
        (40, (*(np.arange(1, 33) / 4), *(np.arange(8) / 4 + 0.125))),
        (1, (8,)),
    ],
)
def test_slopes(heads, powers):
    np.testing.assert_allclose(alibi_slopes(heads), [2.0**-power for power in powers])


def test_alibi_is_the_slope_times_the_distance_wherever_the_queries_start():
    bias = Alibi(num_heads=4)(jnp.int32(3), 2, 7)
    for head, slope in enumerate(alibi_slopes(4)):
        for query in range(2):
            for key in range(7):
                assert bias[head, query, key] == -slope * abs(3 + query - key)


def test_only_distances_count():
    """The same text later in a longer row has the same outputs: contexts may be longer than any seen."""
    layer = attention(relative_bias=Alibi(num_heads=4))
    x = jax.random.normal(jax.random.key(0), (1, 6, 16))
    variables = params_of(layer, x)
    there = jnp.concatenate([jax.random.normal(jax.random.key(1), (1, 30, 16)), x], axis=1)
    ids = jnp.where(jnp.arange(36) < 30, 1, 2)[None]
    alone, _ = layer.apply(variables, x)
    late, _ = layer.apply(variables, there, None, ids)
    np.testing.assert_allclose(late[:, 30:], alone, atol=1e-5)


@pytest.mark.parametrize(("width", "power", "length"), [(3, 1.0, 11), (128, 1.0, 20), (4, 2.0, 8), (1, 1.0, 5)])
def test_the_filter_of_a_static_sgu(width, power, length):
    layer = StaticSguMixer(specs=Specs(), mixer=attention(model_dim=8, head_dim=2), width=width, power=power)
    x = jax.random.normal(jax.random.key(0), (2, length, 16))
    variables = params_of(layer, x)
    ids = np.where(np.arange(length) < length // 2, 1, 2)[None].repeat(2, 0)
    y, _ = jax.jit(layer.apply)(variables, x, None, jnp.array(ids))
    expected = np.zeros((2, length, 8))
    for i in range(length):
        for j in range(max(0, i - width), i + 1):
            if ids[0, i] == ids[0, j]:
                expected[:, i] += np.asarray(x[:, j, :8]) / ((i - j + 1) ** power + 1)
    np.testing.assert_allclose(y[..., :8], expected, atol=1e-5)
    alone, _ = attention(model_dim=8, head_dim=2).apply({"params": variables["params"]["mixer"]}, x[..., 8:], None, ids)
    np.testing.assert_allclose(y[..., 8:], alone, atol=1e-5)
    # Its half passes no gradient.
    slope = jax.grad(lambda x: jnp.sum(layer.apply(variables, x)[0] ** 2))(x)
    assert not np.any(slope[..., :8])
    assert np.any(slope[..., 8:])


def test_channels_without_halves():
    layer = StaticSguMixer(specs=Specs(), mixer=attention(model_dim=8, head_dim=2), width=0)
    with pytest.raises(UsageError, match=r"filter width of at least 1 \(got 0\)"):
        layer.init(jax.random.key(0), jnp.zeros((1, 4, 16)))


def pointing_task(**knobs):
    return build(GptLm.derive(**POINTING | knobs)().Task(), "task")


def test_a_pointing_head_adds_nothing_at_first_and_its_formula_later():
    task = pointing_task()
    variables = variables_of(task)
    tokens = jax.random.randint(jax.random.key(0), (2, 12), 0, 5)  # few tokens: many places of each
    read = lambda variables: task.model.apply(variables, tokens)[0]
    logits = lambda variables, features: task.model.apply(variables, features, method="logits")
    features = read(variables)
    assert isinstance(features, PointedFeatures)
    plain = logits(variables, features.x_bsm)
    np.testing.assert_array_equal(logits(variables, features), plain)
    shape = variables["params"]["pointer"]["pointer_query_mc"].shape
    variables["params"]["pointer"]["pointer_query_mc"] = query = jax.random.normal(jax.random.key(1), shape)
    key, z = variables["params"]["pointer"]["pointer_key_mc"], features.x_bsm
    expected = np.array(plain)
    for b in range(2):
        for i in range(12):
            for j in range(i + 1):
                expected[b, i, tokens[b, j]] += (z[b, i] @ query) @ (z[b, j] @ key) / 8
    found = logits(variables, read(variables))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(found - plain).max() > 0.01


@pytest.mark.parametrize("chunk", [None, 4])
def test_a_pointing_head_learns_and_decodes_as_it_reads(chunk):
    task = pointing_task(LOSS_CHUNK=chunk)
    variables = variables_of(task)
    pointer = variables["params"]["pointer"]
    pointer["pointer_query_mc"] = jax.random.normal(jax.random.key(1), pointer["pointer_query_mc"].shape)
    tokens = jax.random.randint(jax.random.key(0), (2, 12), 0, 40)
    ids = jnp.where(jnp.arange(12) < 5, 1, 2)[None].repeat(2, 0)
    features, _ = task.model.apply(variables, tokens, None, ids)
    whole = task.model.apply(variables, features, method="logits")
    state = task.init_decode_state(2, 15)
    for start, end in ((0, 4), (4, 5), (5, 11), (11, 12)):
        logits, state = task.decode_step(variables, tokens[:, start:end], state, ids[:, start:end])
        np.testing.assert_allclose(logits, whole[:, end - 1], atol=1e-5)
