"""Experts with slots: what decoding computes differently from a pass over complete rows, and that it is stated."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.references.models import task_of, variables_of

EXPERTS = {"FFN": "experts", "NUM_EXPERTS": 4, "NUM_GROUPS": 2}
TOKENS = np.random.default_rng(0).integers(0, 32, (2, 16)).astype(np.int32)


def logits_of(**knobs):
    """Logits of complete rows, of the same rows with another end, and of decoding token by token."""
    task = task_of(**EXPERTS, **knobs)
    variables = variables_of(task)
    rows, step = jax.jit(task.logits), jax.jit(task.decode_step)
    other = np.concatenate([TOKENS[:, :12], (TOKENS[:, 12:] + 7) % 32], axis=1)
    state, decoded = task.init_decode_state(2, 16), []
    for place in range(16):
        logits, state = step(variables, TOKENS[:, place : place + 1], state)
        decoded.append(logits)
    return rows(variables, TOKENS), rows(variables, other), jnp.stack(decoded, axis=1)


def near(a, b):
    return bool(np.allclose(a, b, atol=1e-5))


@pytest.mark.parametrize(
    ("knobs", "ignores_the_end", "decodes_the_same"),
    [
        ({"CAPACITY_FACTOR": 1.0}, False, False),
        ({"CAPACITY_FACTOR": 1.0, "SECOND_EXPERT": "none"}, True, False),
        ({"CAPACITY_FACTOR": 8.0}, True, True),
        ({"CAPACITY_FACTOR": None}, True, True),
        ({"ROUTING": "expert_choice"}, False, False),
    ],
)
def test_what_slots_change(knobs, ignores_the_end, decodes_the_same):
    """Second choices queue after the first choices of later tokens too; tokens of a decoding step find slots."""
    complete, other, decoded = logits_of(**knobs)
    assert near(complete[:, :12], other[:, :12]) == ignores_the_end
    assert near(complete, decoded) == decodes_the_same


def test_it_is_stated():
    caveat = lambda **knobs: task_of(**knobs).decoding_caveat()
    assert caveat() is None
    assert caveat(**EXPERTS, CAPACITY_FACTOR=None) is None
    assert caveat(**EXPERTS).startswith("Experts have slots (CAPACITY_FACTOR = 2). Tokens without a slot skip")
    assert caveat(**EXPERTS, CAPACITY_FACTOR=0, CAPACITY=8).startswith("Experts have slots (CAPACITY = 8).")
    assert "(ROUTING = expert_choice)" in caveat(**EXPERTS, ROUTING="expert_choice")
    mixed = caveat(**EXPERTS | {"FFN": ("dense", "experts"), "NUM_LAYERS": 4})
    assert mixed == caveat(**EXPERTS)
