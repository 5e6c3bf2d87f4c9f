"""Which implementation of attention is chosen, why, and how it is stated."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractDevice, AbstractMesh

from layers.attention.implementations import BLOCKWISE_FROM, Call, Decision, choose, description, recorded
from layers.errors import UsageError
from layers.positions.alibi import Alibi
from runners.machine.chips import CHIPS
from runners.planner.topologies import planned_cudnn
from tests.layers.attention.test_attention import attention, params_of

PLAIN = Call(
    **{"queries": 4096, "keys": 4096, "head_dim": 64, "dtype": "bfloat16", "causal": True, "dropout_rate": 0.0},
    **{"has_state": False, "has_segments": False, "window": None, "softcap": None, "bias": "none"},
    **{"extra_logit": None, "score_function": "softmax", "is_watched": False},
)
change = functools.partial(dataclasses.replace, PLAIN)


def chosen(call, platform, wanted="auto", exchange="auto", kind="device", devices=1):
    mesh = AbstractMesh((devices,), ("data",), abstract_device=AbstractDevice(kind, None, platform))
    with jax.sharding.use_abstract_mesh(mesh), recorded() as decisions:
        choose(wanted, call, "mixer", exchange)
    return decisions[0]


@pytest.mark.parametrize(
    ("call", "platform", "expected"),
    [
        (PLAIN, "gpu", "cudnn"),
        (PLAIN, "cpu", "blockwise"),
        (PLAIN, "tpu", "splash"),
        (change(has_segments=True, window=8, softcap=1.0, extra_logit=0.0, dtype="float32"), "tpu", "splash"),
        (change(dropout_rate=0.1), "tpu", "blockwise"),
        (change(queries=1, has_state=True), "tpu", "dense"),
        (change(is_watched=True), "tpu", "dense"),
        (change(keys=BLOCKWISE_FROM["cpu"] - 1), "cpu", "dense"),
        (change(queries=1), "cpu", "dense"),
        (change(bias="matrix"), "cpu", "dense"),
        (change(is_watched=True), "cpu", "dense"),
        (change(window=8), "gpu", "cudnn"),
        (change(dropout_rate=0.1), "gpu", "blockwise"),
        (change(has_segments=True), "gpu", "blockwise"),
        (change(has_segments=True, keys=16, queries=16), "gpu", "dense"),
    ],
)
def test_auto(call, platform, expected):
    assert chosen(call, platform).implementation == expected


@pytest.mark.parametrize(
    ("changes", "knob"),
    [
        ({"dropout_rate": 0.1}, "ATTENTION_DROPOUT=0"),
        ({"dtype": "float32"}, "DTYPE=bfloat16"),
        ({"softcap": 50.0}, "ATTENTION_SOFTCAP=None"),
        ({"extra_logit": 0.0}, "EXTRA_LOGIT=None"),
        ({"score_function": "squared_relu"}, "SCORE_FUNCTION=softmax"),
        ({"bias": "by_distance"}, "POSITIONS=rotary"),
        ({"head_dim": 256}, "HEAD_DIM"),
        ({"has_segments": True}, "MAX_SEGMENTS"),
        ({"has_segments": True, "max_segments": 8}, ""),  # no Hopper
    ],
)
def test_a_decision_for_a_gpu_has_the_knob_that_allows_cudnn(changes, knob):
    assert [each for _, each in chosen(change(**changes), "gpu").without_kernel] == [knob]
    assert not chosen(change(**changes), "cpu").without_kernel


def test_cudnn_reads_segments_where_their_number_is_limited():
    packed = change(has_segments=True, max_segments=8)
    with planned_cudnn(CHIPS["h100"]):
        assert chosen(packed, "gpu") == Decision("mixer", "cudnn")
        windowed = chosen(dataclasses.replace(packed, window=8), "gpu")
    assert windowed.without_kernel == (("a window on rows of several segments", "ATTENTION_WINDOW=None"),)
    with planned_cudnn(CHIPS["a100-80"]):
        assert chosen(packed, "gpu").without_kernel == (("rows of several segments on a GPU before Hopper", ""),)


def test_splash_needs_a_chip_and_rows_that_have_it():
    assert chosen(PLAIN, "tpu", kind="TPU v4").implementation == "splash"
    old = chosen(PLAIN, "tpu", kind="TPU v3")
    assert (old.implementation, old.without_kernel) == ("blockwise", (("a TPU v3", ""),))
    odd = chosen(change(queries=4100, keys=4100), "tpu")
    assert odd.without_kernel == (("rows that are not a multiple of 128 positions", "SEQ_LEN"),)


def test_what_is_wanted_is_chosen_or_refused_by_a_sentence():
    assert chosen(PLAIN, "gpu", "dense").implementation == "dense"
    assert chosen(change(keys=16, queries=16), "cpu", "blockwise").implementation == "blockwise"
    assert chosen(change(has_segments=True), "gpu", "cudnn").implementation == "cudnn", "by a mask"
    assert chosen(change(has_state=True), "tpu", "splash").implementation == "blockwise", "a prompt"
    assert chosen(change(has_state=True, queries=1), "tpu", "splash").implementation == "dense"
    assert chosen(change(is_watched=True), "tpu", "splash").implementation == "dense"
    assert chosen(change(is_watched=True, parts=2), "tpu", "splash").implementation == "dense"
    assert chosen(change(queries=64, keys=64), "tpu", "splash").implementation == "dense", "scored texts are short"
    for call, platform, wanted, words in (
        (PLAIN, "cpu", "cudnn", r"cudnn needs a GPU \(got cpu\). Set it to auto"),
        (PLAIN, "gpu", "splash", r"splash needs a TPU \(got gpu\). Set it to auto"),
        (change(bias="matrix"), "tpu", "splash", "splash does not support biases of positions. Set only one of them"),
        (change(parts=2, heads_divide=False), "tpu", "splash", "share because of the number of heads, which these"),
        (change(softcap=8.0), "gpu", "cudnn", "cudnn does not support a cap on the scores. Set only one of them"),
        (change(bias="matrix"), "cpu", "blockwise", "does not support a relative bias without a method by_distance"),
    ):
        with pytest.raises(UsageError, match=words):
            chosen(call, platform, wanted)


def test_layers_record_their_paths_where_they_are_asked_to():
    x = jnp.ones((1, 8, 16))
    layer = attention(implementation="blockwise", relative_bias=Alibi(num_heads=4))
    variables = params_of(layer, x)
    with recorded() as outer:
        with recorded() as inner:
            layer.apply(variables, x)
        attention().apply(variables, x)
    assert [one.implementation for one in inner] == ["blockwise"]
    assert [one.implementation for one in outer] == ["blockwise", "dense"]


def test_watched_scores_are_those_of_dense_attention():
    x = jnp.ones((1, 8, 16))
    layer = attention(implementation="blockwise")
    _, found = layer.apply(params_of(layer, x), x, mutable=["watched"])
    assert found["watched"]["scores"].shape == (1, 4, 8, 8)


def test_only_causal_rows_on_one_cpu_have_parts_of_queries():
    short = change(queries=512, keys=512)
    parts = lambda platform, **changes: chosen(dataclasses.replace(short, **changes), platform, "dense").query_parts
    assert [parts("cpu", queries=n, keys=n) for n in (255, 256, 1023, 1024)] == [1, 2, 1, 4]  # 1023 is odd
    assert parts("cpu", queries=1026, keys=1026) == 2
    assert parts("gpu") == parts("tpu") == parts("cpu", causal=False) == parts("cpu", has_state=True) == 1
    assert parts("cpu", dropout_rate=0.1) == parts("cpu", is_watched=True) == 1
    assert chosen(short, "cpu", "dense", devices=2).query_parts == 1


def test_descriptions():
    decisions = [
        Decision(layer, kind) for layer, kind in (("a", "dense"), ("b", "cudnn"), ("a", "dense"), ("c", "dense"))
    ]
    assert description(decisions) == "dense in a and c, cudnn in b"
    assert description([Decision(name, "dense") for name in "abcd"]) == "dense in a and 3 other layers"
    assert description([]) == ""
