"""Updates that are dropped because their loss or gradient norm is far above those before."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from registry.checks import check
from registry.resolve import resolve
from tasks.spikes import Spikes
from tasks.train_step import init_state, train_step

SPIKES = Spikes(window=8, deviations=2.0)


def reference(history, value, window, deviations):
    """The rule on lists: one quantity."""
    known = [x for x in history[-window:] if np.isfinite(x)]
    if len(known) < max(2, window // 2):
        return False
    return value - np.mean(known) > deviations * np.std(known, ddof=1)


def test_outliers_among_the_last_values():
    rng = np.random.default_rng(0)
    values = rng.normal(5.0, 0.5, (60, 2)).astype(np.float32)
    values[[20, 33], 0], values[[40, 47], 1], values[25, 0] = 9.0, 12.0, np.nan
    recent, found, wanted = SPIKES.unknown(), [], []
    for step, pair in enumerate(values):
        found.append(bool(SPIKES.is_spike(recent, jnp.asarray(pair))))
        wanted.append(any(reference(values[:step, i].tolist(), pair[i], 8, 2.0) for i in (0, 1)))
        recent = SPIKES.noted(recent, jnp.int32(step), jnp.asarray(pair))
    assert found == wanted
    assert all(found[step] for step in (20, 33, 40, 47))
    assert not found[25], "a value that is not finite is not a spike"
    assert sum(found) < 15


def test_a_lasting_change_is_accepted():
    recent, found = SPIKES.unknown(), []
    for step in range(40):
        value = jnp.float32([1.0 + 0.01 * (step % 3) + 4.0 * (step >= 20)] * 2)
        found.append(bool(SPIKES.is_spike(recent, value)))
        recent = SPIKES.noted(recent, jnp.int32(step), value)
    assert found[20]
    assert not any(found[22:]), "dropped values are in the window too"


@pytest.mark.parametrize(("field", "value"), [("window", 3), ("deviations", 0.0)])
def test_settings_that_mean_nothing_are_refused(field, value):
    with pytest.raises(ValueError, match=f"{field} of spikes must be"):
        Spikes(**{"window": 8, "deviations": 2.0, field: value})


def test_a_spike_leaves_weights_and_slots_and_the_schedule_continues():
    """One batch of targets that the model finds much less probable than all others."""
    made = resolve("tiny.StdlibTiny", ["SPIKE_WINDOW=8", "SPIKE_DEVIATIONS=4"], smoke=True)
    built = check(made)
    task, source = built.task, built.train.input
    update = jax.jit(functools.partial(train_step, task, log_every=100))
    state = init_state(task, jax.random.key(0), source.batch(0))
    states = [state]
    for step in range(12):
        batch = source.batch(0)
        if step == 9:
            batch = batch.replace(targets=np.full_like(batch.targets, 7))
        states.append(update(states[-1], batch, jax.random.key(1)))
    assert [int(state.skipped) for state in states[8:]] == [0, 0, 1, 1, 1]
    equal = lambda a, b: jax.tree.all(jax.tree.map(np.array_equal, a, b))
    before, spiked, after = states[9:12]
    assert equal(before.variables, spiked.variables)
    assert not equal(spiked.variables, after.variables)
    counts = lambda state: [
        leaf for leaf in jax.tree.leaves(state.optimizer, is_leaf=lambda x: isinstance(x, optax.ScaleByScheduleState))
        if isinstance(leaf, optax.ScaleByScheduleState)
    ]  # fmt: skip
    assert [int(part.count) for part in counts(spiked)] == [10], "the learning rate counts all updates"
    slots = lambda state: [leaf for leaf in jax.tree.leaves(state.optimizer) if leaf.ndim]
    assert equal(slots(before), slots(spiked))
    assert float(spiked.sums.loss) > float(before.sums.loss), "its loss is reported"
    assert int(spiked.bad_step) == 0


def test_without_the_knob_there_is_nothing_to_store():
    built = check(resolve("tiny.StdlibTiny", smoke=True))
    assert built.task.spikes is None
    assert init_state(built.task, jax.random.key(0), built.train.input.batch(0)).recent is None
