import numpy as np
import optax
import pytest

from tasks.optimizers.schedules import Schedule


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule(), {0: 1, 999: 1}),
        (Schedule(warmup_steps=4), {0: 0.25, 3: 1, 4: 1, 100: 1}),
        (Schedule(kind="linear", decay_steps=10), {0: 1, 5: 0.5, 10: 0, 20: 0}),
        (Schedule(kind="linear", warmup_steps=2, decay_steps=12, end_factor=0.2), {0: 0.5, 2: 1, 7: 0.6, 12: 0.2}),
        (Schedule(kind="cosine", warmup_steps=2, decay_steps=12, end_factor=0.1), {2: 1, 7: 0.55, 12: 0.1, 50: 0.1}),
        (Schedule(kind="inverse_sqrt"), {0: 1, 1: 1, 4: 0.5, 100: 0.1}),
        (Schedule(kind="inverse_sqrt", warmup_steps=4), {0: 0.25, 3: 1, 4: 1, 16: 0.5}),
        (Schedule(kind="inverse_sqrt", timescale=100), {0: 1, 100: 1, 400: 0.5}),
    ],
)
def test_values_by_hand(schedule, expected):
    for step, factor in expected.items():
        np.testing.assert_allclose(schedule(step), factor, atol=1e-6)


def test_cosine_equals_optax():
    ours = Schedule(kind="cosine", decay_steps=100, end_factor=0.1)
    theirs = optax.cosine_decay_schedule(1.0, 100, alpha=0.1)
    np.testing.assert_allclose([ours(t) for t in range(0, 120, 7)], [theirs(t) for t in range(0, 120, 7)], atol=1e-6)


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_decay_needs_an_end(kind):
    with pytest.raises(ValueError, match=r"decay_steps of a .* schedule must be above warmup_steps = 3"):
        Schedule(kind=kind, warmup_steps=3, decay_steps=2)
