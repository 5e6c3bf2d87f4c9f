"""Patterns over layers: their cut into scanned stacks, and models of several stacks."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layers.errors import UsageError
from registry.templates.layer_patterns import LONGEST_UNIT, segments
from tests.support.references.models import Small, same, task_of, train_losses, variables_of

LOCAL_GLOBAL = {"ATTENTION_WINDOW": (*[3] * 5, None)}


def cut(pattern, num_layers):
    """The cut of layers into units and repetitions."""
    return segments([{"FFN": pattern[i % len(pattern)]} for i in range(num_layers)], len(pattern))


def sizes(pattern, num_layers):
    return [(len(unit), repeats) for unit, repeats in cut(pattern, num_layers)]


def test_patterns_are_cut_into_few_units():
    assert sizes("a", 26) == [(1, 26)]
    assert sizes("ab", 26) == [(2, 13)]
    assert sizes("aaaaab", 24) == [(6, 4)]
    assert sizes("aaaaab", 26) == [(6, 4), (1, 2)]  # the remainder of two equal layers is scanned too
    assert sizes("aaaaab", 62) == [(6, 10), (1, 2)]
    assert sizes("d" + "e" * 25, 26) == [(1, 1), (1, 25)]  # the first layer dense
    assert sizes("ddd" + "e" * 58, 61) == [(1, 3), (1, 58)]
    assert sizes("d" + "ab" * 10, 21) == [(1, 1), (2, 10)]


@given(st.lists(st.sampled_from("ab"), min_size=1, max_size=12), st.integers(0, 20))
def test_every_cut_is_the_sequence(pattern, more):
    num_layers = len(pattern) + more
    pieces = cut(pattern, num_layers)
    assert [kind["FFN"] for unit, repeats in pieces for _ in range(repeats) for kind in unit] == [
        pattern[i % len(pattern)] for i in range(num_layers)
    ]
    assert all(len(unit) <= LONGEST_UNIT for unit, _ in pieces)


def test_a_layer_has_the_knobs_of_its_place():
    stacks = Small.derive(NUM_LAYERS=8, NUM_KV_HEADS=(4, 2), **LOCAL_GLOBAL)().stack().stacks
    assert [(stack.num_layers, len(stack.block.blocks)) for stack in stacks] == [(1, 6), (1, 2)]
    mixers = [block.mixer for stack in stacks for block in stack.block.blocks]
    assert [mixer.window for mixer in mixers] == [3, 3, 3, 3, 3, None, 3, 3]
    assert [mixer.num_kv_heads for mixer in mixers] == [4, 2, 4, 2, 4, 2, 4, 2]


@pytest.mark.parametrize("pattern", [(), ("dense",) * 3])
def test_patterns_that_do_not_fit_are_refused(pattern):
    with pytest.raises(UsageError, match=f"FFN has a pattern of {len(pattern)} layers, but NUM_LAYERS is 2"):
        Small.derive(FFN=pattern)().Task()


def test_billions_of_layers_are_refused():
    with pytest.raises(UsageError, match=r"NUM_LAYERS must be at most 10,000 \(got 2,000,000,000\)"):
        Small.derive(NUM_LAYERS=2_000_000_000)().Task()


def test_a_pattern_of_equal_values_changes_nothing():
    """A remainder, scanned in a second stack, changes no number."""
    assert len(Small.derive(NUM_LAYERS=5, FFN=("dense", "dense"))().stack().stacks) == 2
    variables = variables_of(task_of(NUM_LAYERS=5))
    block = variables["params"]["stack"]["block"]
    part = lambda start, end, step: jax.tree.map(lambda leaf: leaf[start:end:step], block)
    stacks = {
        "stacks_0": {"block": {"blocks_0": part(0, 4, 2), "blocks_1": part(1, 4, 2)}},
        "stacks_1": {"block": part(4, 5, 1)},
    }
    tokens = jax.random.randint(jax.random.key(0), (2, 16), 0, 32)
    expected = task_of(NUM_LAYERS=5).logits(variables, tokens)
    task = task_of(NUM_LAYERS=5, FFN=("dense", "dense"))
    found = task.logits({**variables, "params": {**variables["params"], "stack": stacks}}, tokens)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    "knobs",
    [
        {"NUM_LAYERS": 8, **LOCAL_GLOBAL},
        {"NUM_LAYERS": 4, "FFN": ("dense", "gated", "gated", "gated")},
        {"NUM_LAYERS": 3, "POSITIONS": ("rotary", "none")},
    ],
    ids=["remainder", "first_dense", "positions"],
)
@pytest.mark.parametrize("unstacked", [False, True])
def test_decoding_through_several_stacks_equals_the_full_pass(knobs, unstacked):
    task = task_of(**knobs)
    variables = variables_of(task)
    tokens = jax.random.randint(jax.random.key(0), (2, 16), 0, 32)
    expected = task.logits(variables, tokens)
    state, step = task.init_decode_state(2, 16), jax.jit(task.decode_step)
    logits, state = step(variables, tokens[:, :5], state)
    np.testing.assert_allclose(logits, expected[:, 4], atol=2e-5)
    if unstacked:
        variables, state = task.unstack(variables, state)
    for i in range(5, 16):
        logits, state = step(variables, tokens[:, i : i + 1], state)
        np.testing.assert_allclose(logits, expected[:, i], atol=2e-5)


@pytest.mark.parametrize("remat", ["none", "full"])
def test_unrolling_and_remat_change_no_number(remat):
    plain, state = train_losses(2, NUM_LAYERS=5, FFN=("dense", "gated"))
    losses, other = train_losses(2, NUM_LAYERS=5, FFN=("dense", "gated"), UNROLL=4, REMAT=remat)
    assert Small.derive(NUM_LAYERS=5, FFN=("dense", "gated"), UNROLL=4)().stack().stacks[0].unroll == 2
    np.testing.assert_allclose(losses, plain, rtol=1e-6)
    assert same(jax.tree.map(np.shape, state.variables), jax.tree.map(np.shape, other.variables))


@pytest.mark.parametrize("more", [{}, {"FFN": ("gated", "dense", "dense", "dense")}])
def test_the_program_does_not_grow_with_the_depth(more):
    """26 and 62 layers of a period of six, or of twelve by two patterns, with two left over."""
    lengths = []
    for num_layers in (26, 62):
        task = task_of(NUM_LAYERS=num_layers, **LOCAL_GLOBAL, **more)
        variables = jax.eval_shape(lambda task=task: variables_of(task))
        tokens = jax.ShapeDtypeStruct((2, 16), np.int32)
        program = jax.jit(jax.grad(lambda v, t, task=task: task.logits(v, t).mean())).lower(variables, tokens)
        lengths.append(len(program.as_text().splitlines()))
    assert lengths[0] == lengths[1]
