"""Every mixer, held to the state interface: any way of cutting a sequence into pieces gives the full pass."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layers.attention.gated import FullAttention
from layers.attention.softmax import Attention
from layers.attention.static_sgu import StaticSguMixer
from layers.attention.vq import VQAttention
from layers.positions.alibi import Alibi
from layers.positions.relative_bias import RelativeBias
from layers.positions.rotary_scaling import Llama3Scaling, RotaryScaling, YarnScaling
from layers.specs import P, Specs
from layers.weights.initializers import FanIn
from registry.templates.gpt_lm import GptLm
from registry.templates.gshard_lm import GShardLm
from registry.templates.mu_lm import MuLm
from tests.layers.attention.test_attention import attention, params_of
from tests.support.references import vq

LENGTH = 12

MERGED = {"specs": GShardLm().specs, "merged_heads": True, "padded_heads": 8}
SCALES = {"specs": MuLm().specs}
RELATIVE = RelativeBias(
    specs=Specs(relative_bias_nr=P(None, None)), num_heads=4, num_buckets=8, max_distance=10, initializer=FanIn()
)
MIXERS = {
    "multi_head": attention(),
    "grouped_query_rotary": attention(num_kv_heads=2, rotary_base=100.0),
    "multi_query_rotary_bias": attention(num_kv_heads=1, rotary_base=100.0, use_bias=True),
    "normed_queries_and_keys": attention(rotary_base=100.0, qk_norm="rms", qk_scale=True, **SCALES),
    "squared_relu_of_scores": attention(score_function="squared_relu", score_length=LENGTH),
    "normalized_elu_of_scores": attention(score_function="normalized_elu_plus_1"),
    "alibi": attention(relative_bias=Alibi(num_heads=4)),
    "window": attention(window=4),
    "window_of_one": attention(window=1, rotary_base=100.0),
    "alibi_in_a_wide_window": attention(relative_bias=Alibi(num_heads=4), window=LENGTH - 1),
    "relative_bias_in_a_window": attention(relative_bias=RELATIVE, window=5, **MERGED),
    "alibi_multi_query": attention(num_kv_heads=1, relative_bias=Alibi(num_heads=4)),
    "l2_normed_queries_and_keys": attention(qk_norm="l2", specs=GptLm().specs),
    "normed_heads_together": attention(qk_norm="rms_all_heads", qk_scale=True, num_kv_heads=2, rotary_base=100.0),
    "one_plus_scale": attention(qk_norm="rms", qk_scale=True, one_plus_scale=True),
    "softcap_in_a_window": attention(softcap=2.0, window=4, rotary_base=100.0),
    "blockwise": attention(implementation="blockwise", block_size=4, num_kv_heads=2, rotary_base=100.0),
    "blockwise_alibi_in_a_window": attention(
        implementation="blockwise", block_size=3, relative_bias=Alibi(num_heads=4), window=5, extra_logit=0.0
    ),
    "linear_rotary": attention(rotary_base=100.0, rotary_scaling=RotaryScaling(factor=4.0)),
    "llama3_rotary": attention(rotary_base=100.0, rotary_scaling=Llama3Scaling(factor=4.0, length=8)),
    "partial_yarn_rotary": attention(
        rotary_base=100.0, rotary_share=0.5, rotary_scaling=YarnScaling(factor=4.0, length=8)
    ),
    "bias_of_the_output": attention(use_bias=False, use_out_bias=True),
    "static_sgu": StaticSguMixer(specs=Specs(), mixer=attention(model_dim=8, head_dim=2), width=5),
    "wide_static_sgu": StaticSguMixer(specs=Specs(), mixer=attention(model_dim=8, head_dim=2), width=40, power=2.0),
    "gshard": attention(scale=1.0, extra_logit=0.0, softcap=2.0, relative_bias=RELATIVE, **MERGED),
    "padded_multi_query": attention(num_kv_heads=1, relative_bias=RELATIVE, **MERGED),
    "vq": vq.mixer(block_length=3, memory_length=4),
    "vq_scan_mha": vq.mixer("mha", block_length=4, memory_length=2, reduction="scan"),
    "vq_mqa_without_cache": vq.mixer("mqa", block_length=4, memory_length=3, cache=False),
    "vq_twin": vq.mixer(full=True, query_chunk=4),
}


def test_every_mixer_is_here():
    mixers = {type(module) for module in MIXERS.values()}
    assert mixers == {Attention, FullAttention, StaticSguMixer, VQAttention}, "a new mixer joins this test"


@functools.cache
def _full(name):
    x = jax.random.normal(jax.random.key(0), (2, LENGTH, 16))
    variables = params_of(MIXERS[name], x)
    return x, variables


@functools.cache
def _pass(name):
    return jax.jit(MIXERS[name].apply)


@pytest.mark.parametrize("name", MIXERS)
@settings(max_examples=6, deadline=None)
@given(cuts=st.sets(st.integers(1, LENGTH - 1)), boundary=st.integers(0, LENGTH), spare=st.integers(0, 3))
def test_any_cut_gives_the_full_pass(name, cuts, boundary, spare):
    x, variables = _full(name)
    segment_ids = jnp.where(jnp.arange(LENGTH) < boundary, 1, 2)[None].repeat(2, axis=0)
    expected, none = _pass(name)(variables, x, None, segment_ids)
    assert none is None
    state = MIXERS[name].init_state(2, LENGTH + spare)
    pieces = []
    edges = [0, *sorted(cuts), LENGTH]
    for start, end in itertools.pairwise(edges):
        y, state = _pass(name)(variables, x[:, start:end], state, segment_ids[:, start:end])
        pieces.append(y)
    np.testing.assert_allclose(jnp.concatenate(pieces, axis=1), expected, atol=5e-6)


@pytest.mark.parametrize("name", MIXERS)
def test_padding_on_the_left_changes_nothing(name):
    x, variables = _full(name)
    padded = jnp.concatenate([jnp.full((2, 3, 16), 7.0), x], axis=1)
    real = jnp.where(jnp.arange(LENGTH + 3) < 3, 0, 1)[None].repeat(2, axis=0)
    positions = jnp.maximum(jnp.cumsum(real, axis=1) - 1, 0)
    y, _ = _pass(name)(variables, padded, MIXERS[name].init_state(2, LENGTH + 3), real, positions)
    np.testing.assert_allclose(y[:, 3:], _pass(name)(variables, x)[0], atol=2e-6)
