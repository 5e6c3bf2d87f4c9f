"""Scaled and partial rotary positions, against transformers' functions and figures of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from layers.errors import UsageError
from layers.positions.embeddings import rotate
from layers.positions.rotary_scaling import Llama3Scaling, RotaryScaling, YarnScaling

BASE, DIM = 500_000.0, 64
CASES = {
    "linear": (RotaryScaling(factor=4.0), {"rope_type": "linear", "factor": 4.0}),
    "llama3": (
        Llama3Scaling(factor=8.0, length=8192),
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        | {"original_max_position_embeddings": 8192},
    ),
    "llama3, other limits": (
        Llama3Scaling(factor=32.0, length=1024, low=2.0, high=16.0),
        {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 2.0, "high_freq_factor": 16.0}
        | {"original_max_position_embeddings": 1024},
    ),
    "yarn": (
        YarnScaling(factor=4.0, length=32_768),
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768},
    ),
    "yarn, other limits": (
        YarnScaling(factor=16.0, length=512, low=2.0, high=24.0, attention_factor=1.25),
        {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 512}
        | {"beta_slow": 2.0, "beta_fast": 24.0, "attention_factor": 1.25},
    ),
}
# Frequencies of the pairs 0, 8, 12, 16, 20, 31 by transformers 5.23 (modeling_rope_utils).
FIGURES = {
    "linear": (0.25, 0.0094015077, 0.0018231663, 0.00035355336, 6.8562047e-05, 7.5346452e-07),
    "llama3": (1.0, 0.037606031, 0.0072926651, 0.00052484602, 3.4281024e-05, 3.7673226e-07),
    "yarn": (1.0, 0.037606031, 0.0072926651, 0.00094280904, 9.1416063e-05, 7.5346452e-07),
}


def plain(dim=DIM, base=BASE):
    return base ** (-jnp.arange(dim // 2, dtype=jnp.float32) / (dim // 2))


@pytest.mark.slow  # needs torch, which make test-slow installs
@pytest.mark.parametrize("name", CASES)
def test_frequencies_are_those_of_transformers(name):
    scaling, parameters = CASES[name]
    pytest.importorskip("torch", reason="torch is not installed; pip install -c constraints.txt -e '.[torch]'")
    why = "transformers is not installed; pip install -c constraints.txt -e '.[hf]'"
    utils = pytest.importorskip("transformers.modeling_rope_utils", reason=why)
    config = pytest.importorskip("transformers", reason=why).LlamaConfig(
        hidden_size=2 * DIM,
        num_attention_heads=2,
        max_position_embeddings=65_536,
        rope_parameters={"rope_theta": BASE, **parameters},
    )
    expected, amplitude = utils.ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, "cpu")
    np.testing.assert_allclose(scaling.frequencies(plain(), BASE), expected.numpy(), rtol=2e-5)
    assert scaling.amplitude == pytest.approx(amplitude)


@pytest.mark.parametrize("name", FIGURES)
def test_frequencies_have_their_figures(name):
    found = CASES[name][0].frequencies(plain(), BASE)[np.array([0, 8, 12, 16, 20, 31])]
    np.testing.assert_allclose(found, FIGURES[name], rtol=2e-5)


def test_amplitudes():
    assert CASES["linear"][0].amplitude == CASES["llama3"][0].amplitude == 1
    assert CASES["yarn"][0].amplitude == pytest.approx(0.1 * np.log(4) + 1)
    assert YarnScaling(factor=1.0, length=16).amplitude == 1
    assert YarnScaling(factor=2.0, length=16, attention_factor=0.5).amplitude == 0.5


def test_linear_scaling_is_the_rotation_of_a_nearer_position():
    x = jax.random.normal(jax.random.key(0), (1, 5, 2, 8))
    positions = 4 * jnp.arange(5)[None]
    scaled = rotate(x, positions, 100.0, scaling=RotaryScaling(factor=4.0))
    np.testing.assert_allclose(scaled, rotate(x, jnp.arange(5)[None], 100.0), atol=1e-6)


def test_the_amplitude_multiplies_rotated_channels():
    x, positions = jax.random.normal(jax.random.key(0), (1, 5, 2, 8)), jnp.arange(5)[None]
    turned = [
        rotate(x, positions, 100.0, share=0.5, scaling=YarnScaling(factor=4.0, length=8, attention_factor=factor))
        for factor in (1.0, 2.0)
    ]
    np.testing.assert_allclose(turned[1][..., :4], 2 * turned[0][..., :4], rtol=1e-6)
    np.testing.assert_array_equal(turned[1][..., 4:], x[..., 4:])


def test_a_share_of_the_channels_rotates_as_a_smaller_head():
    x, positions = jax.random.normal(jax.random.key(0), (2, 5, 3, 16)), jnp.arange(5)[None].repeat(2, axis=0)
    turned = rotate(x, positions, 100.0, share=0.25)
    np.testing.assert_allclose(turned[..., :4], rotate(x[..., :4], positions, 100.0), atol=1e-6)
    np.testing.assert_array_equal(turned[..., 4:], x[..., 4:])


@pytest.mark.parametrize("share", [0.01, 0.2])
def test_an_odd_number_of_channels_is_refused(share):
    with pytest.raises(UsageError, match="rotary_share must select an even number of channels"):
        rotate(jnp.zeros((1, 1, 1, 16)), jnp.zeros((1, 1), int), 100.0, share=share)
