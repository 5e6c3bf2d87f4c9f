import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layers.errors import UsageError
from layers.feed_forward.routing import top2_choices, top_k_choices
from layers.feed_forward.slots import auto_capacity, expert_choice_slots, in_slots
from tests.support.references.lingvo import NUMBERS

LOGITS = (2 * np.sin(1.3 * (np.arange(48) + 1))).reshape(2, 6, 4).astype(np.float32)
REAL = np.ones((2, 6), bool)
REAL[0, 5] = False


@pytest.mark.parametrize(("name", "capacity"), [("legacy_c2", 2), ("legacy_cf1", auto_capacity(6, 4, 1.0))])
def test_top2_equals_the_reference(name, capacity):
    numbers = NUMBERS["gating"][name]
    choices = top2_choices(LOGITS, REAL)
    routing = in_slots(choices, capacity)
    expected = np.zeros(routing.combine_gsec.shape)
    for *place, gate in numbers["combine_nonzero"]:
        expected[tuple(place)] = gate
    np.testing.assert_allclose(routing.combine_gsec, expected, atol=1e-6)
    np.testing.assert_allclose(choices.aux_loss, numbers["aux_loss"], rtol=1e-6)
    assert capacity == numbers["capacity"]
    assert int(jnp.sum(routing.combine_gsec > 0)) == numbers["dispatch_count"]


@pytest.mark.parametrize(("capacity", "slots"), [(2, 16), (4, 22), (8, 22)])
def test_gates_after_the_drop_sum_to_one(capacity, slots):
    choices = top2_choices(LOGITS, REAL, legacy=False)
    routing = in_slots(choices, capacity)
    np.testing.assert_allclose(choices.aux_loss, 1.0467385, rtol=1e-6)
    np.testing.assert_allclose(jnp.sum(routing.combine_gsec), 11.0, rtol=1e-6)
    assert int(jnp.sum(routing.combine_gsec > 0)) == slots
    np.testing.assert_allclose(routing.dropped, 1 - slots / 22, atol=1e-6)


def test_capacity_by_factor():
    assert [auto_capacity(6, 4, f) for f in (1.0, 2.0, 4.0)] == [4, 4, 8]
    assert auto_capacity(6, 64, 1.0) == 4
    assert auto_capacity(6, 4, 1.0, at_least=5) == 5


def test_balanced_routing_has_loss_one():
    logits = np.tile(np.eye(4, dtype=np.float32) * 1e-6, (1, 3, 1))
    np.testing.assert_allclose(top2_choices(logits, np.ones((1, 12), bool)).aux_loss, 1.0, rtol=1e-5)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    policy=st.sampled_from(["all", "sampling", "random", "none"]),
    capacity=st.integers(1, 9),
    legacy=st.booleans(),
)
def test_every_slot_has_one_token_and_padding_none(seed, policy, capacity, legacy):
    keys = jax.random.split(jax.random.key(seed), 3)
    logits = 3 * jax.random.normal(keys[0], (2, 8, 4))
    real = jax.random.bernoulli(keys[1], 0.8, (2, 8))
    routing = in_slots(top2_choices(logits, real, policy, 0.5, legacy, keys[2]), capacity)
    slots = np.asarray(routing.combine_gsec > 0)
    assert slots.sum(axis=1).max() <= 1
    assert slots.sum(axis=(2, 3)).max() <= (1 if policy == "none" else 2)
    assert not slots[~np.asarray(real)].any()
    # First come, first served: the slots of an expert fill from the first on.
    used = slots.any(axis=1)
    assert (np.diff(used.astype(int), axis=-1) <= 0).all()
    assert 0 <= float(routing.dropped) <= 1
    assert np.asarray(routing.combine_gsec.sum((2, 3))).max() <= 1 + 1e-5


def test_second_expert_policies():
    logits = np.zeros((1, 4000, 4), np.float32)
    logits[..., 0], logits[..., 1], logits[..., 2] = 5, np.log(3.0), 0  # after the first, odds of 3 : 1 : 1
    real, key = np.ones((1, 4000), bool), jax.random.key(1)

    def share(policy, threshold=0.0):
        routing = in_slots(top2_choices(logits, real, policy, threshold, True, key), 4000)
        return np.asarray((routing.combine_gsec > 0).sum((0, 1, 3)) / 4000)

    np.testing.assert_allclose(share("all"), [1, 1, 0, 0])
    np.testing.assert_allclose(share("none"), [1, 0, 0, 0])
    np.testing.assert_allclose(share("sampling"), [1, 0.6, 0.2, 0.2], atol=0.03)
    gate = 3 / (np.exp(5) + 3)
    np.testing.assert_allclose(share("random", 0.05), [1, gate / 0.05, 0, 0], atol=0.03)
    np.testing.assert_allclose(share("random"), [1, 1, 0, 0])


def test_a_certain_first_choice_is_not_made_twice():
    """All other probabilities underflow to zero: the second gate is zero, not the first one again."""
    logits = np.zeros((1, 4, 3), np.float32)
    logits[..., 0] = 200
    routing = in_slots(top2_choices(logits, np.ones((1, 4), bool)), 8)
    np.testing.assert_allclose(routing.combine_gsec.sum((2, 3)), 1.0, rtol=1e-6)
    assert int((routing.combine_gsec > 0).sum()) == 4


def test_expert_choice_fills_every_expert():
    logits = jax.random.normal(jax.random.key(0), (2, 8, 4))
    real = np.ones((2, 8), bool)
    real[:, 6:] = False
    routing, load = expert_choice_slots(logits, real, 3)
    slots = np.asarray(routing.combine_gsec > 0)
    assert (slots.sum(axis=1) == 1).all()
    assert not slots[:, 6:].any()
    probability = np.asarray(jax.nn.softmax(logits, -1))
    for g, e in np.ndindex(2, 4):
        best = set(np.argsort(-probability[g, :6, e])[:3])
        assert set(np.nonzero(slots[g, :, e].any(-1))[0]) == best
    np.testing.assert_array_equal(load, 6)  # balanced by construction


def test_gates_of_top_k_are_shares_of_all_or_of_the_chosen_experts():
    probability = jax.nn.softmax(LOGITS, axis=-1)
    top = jnp.sort(probability, axis=-1)[..., -2:] * REAL[..., None]
    of_all = in_slots(top_k_choices(LOGITS, REAL, 2, "softmax_then_top_k"), 6).combine_gsec
    of_chosen = in_slots(top_k_choices(LOGITS, REAL, 2, "top_k_then_softmax"), 6).combine_gsec
    np.testing.assert_allclose(jnp.sum(of_all, axis=(2, 3)), jnp.sum(top, axis=-1), rtol=1e-6)
    np.testing.assert_allclose(jnp.sum(of_chosen, axis=(2, 3)), REAL, rtol=1e-6)
    shares = of_all / jnp.maximum(jnp.sum(of_all, axis=(2, 3), keepdims=True), 1e-9)
    np.testing.assert_allclose(shares, of_chosen, atol=1e-6)


def test_top_2_of_top_k_is_top2():
    top2, top_k = top2_choices(LOGITS, REAL), top_k_choices(LOGITS, REAL, 2)
    expected, found = in_slots(top2, 2), in_slots(top_k, 2)
    np.testing.assert_allclose(found.combine_gsec, expected.combine_gsec, atol=1e-6)
    np.testing.assert_allclose(found.dropped, expected.dropped, atol=1e-6)
    np.testing.assert_allclose(top_k.load_max, top2.load_max, rtol=1e-6)


@pytest.mark.parametrize("capacity", [1, 2, 6])
def test_top_k_gives_each_slot_to_one_token_and_none_to_padding(capacity):
    routing = in_slots(top_k_choices(LOGITS, REAL, 3), capacity)
    taken = routing.combine_gsec > 0
    assert int(jnp.max(jnp.sum(taken, axis=1))) == 1
    assert not np.any(taken[0, 5])
    np.testing.assert_allclose(routing.dropped, 1 - jnp.sum(taken) / (3 * REAL.sum()), atol=1e-6)


@pytest.mark.parametrize("count", [0, 5])
def test_top_k_of_too_many_experts_is_refused(count):
    with pytest.raises(UsageError, match=r"experts_per_token must be between 1 and num_experts = 4 \(got"):
        top_k_choices(LOGITS, REAL, count)


GATES = {
    "softmax_then_top_k": lambda logits, chosen: jax.nn.softmax(logits) * chosen,
    "top_k_then_softmax": lambda logits, chosen: jax.nn.softmax(jnp.where(chosen, logits, -jnp.inf)),
    "sigmoid_then_top_k": lambda logits, chosen: jax.nn.sigmoid(logits) * chosen,
    "normalized_sigmoid": lambda logits, chosen: (
        jax.nn.sigmoid(logits) * chosen / jnp.sum(jax.nn.sigmoid(logits) * chosen, axis=-1, keepdims=True)
    ),
}


@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_gates_are_those_of_their_formula(gates, count):
    chosen = np.sort(LOGITS, axis=-1)[..., -count, None] <= LOGITS
    choices = top_k_choices(LOGITS, REAL, count, gates)
    found = np.zeros(LOGITS.shape)
    np.put_along_axis(found, np.asarray(choices.expert_gsk), np.asarray(choices.gate_gsk), axis=-1)
    np.testing.assert_allclose(found, GATES[gates](LOGITS, chosen), atol=1e-6)


@pytest.mark.parametrize("gates", GATES)
def test_a_bias_changes_the_choice_and_not_the_gates(gates):
    bias = jnp.array([10.0, -10.0, 0.0, 10.0])
    choices = top_k_choices(LOGITS, REAL, 2, gates, bias)
    np.testing.assert_array_equal(np.sort(choices.expert_gsk, axis=-1), np.broadcast_to([0, 3], (2, 6, 2)))
    chosen = np.broadcast_to([True, False, False, True], LOGITS.shape)
    expected = np.take_along_axis(np.asarray(GATES[gates](LOGITS, chosen)), np.asarray(choices.expert_gsk), axis=-1)
    np.testing.assert_allclose(choices.gate_gsk, expected, atol=1e-6)
    np.testing.assert_array_equal(choices.load_e, [11, 0, 0, 11])


def test_the_balancing_loss_of_sigmoids_is_one_if_even():
    logits = np.tile(np.eye(4, dtype=np.float32) * 1e-6, (1, 3, 1))
    choices = top_k_choices(logits, np.ones((1, 12), bool), 1, "normalized_sigmoid")
    np.testing.assert_allclose(choices.aux_loss, 1, rtol=1e-5)
