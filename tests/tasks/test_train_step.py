import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from tasks.batch import empty_batch
from tasks.metrics import MetricSums, language_scalars
from tasks.train_step import init_state, train_step
from tests.support.references.models import batch_of, same, task_of, train_losses, variables_of


@pytest.mark.parametrize("pieces", [2, 4, 8])
def test_accumulation_equals_the_big_batch(pieces):
    """Rows of synthetic data have different numbers of targets, so a mean of means would differ."""
    weights = batch_of().weights.reshape(-1, pieces, 16).sum((0, 2))
    assert len(set(weights.tolist())) > 1
    expected, state = train_losses(4)
    losses, other = train_losses(4, GRADIENT_ACCUMULATION=pieces)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(state.variables), jax.tree.leaves(other.variables), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-4)


def test_it_learns():
    losses, _ = train_losses(40, LEARNING_RATE=1e-2, NUM_STEPS=1000)
    assert losses[-1] < losses[0] - 1.0


def test_same_seed_same_bits_and_dropout_follows_the_step():
    a, b = (train_losses(3, DROPOUT=0.2)[1] for _ in range(2))
    assert same(a, b)
    task = task_of(DROPOUT=0.2)
    variables, batch = variables_of(task), batch_of()
    first, second = (task.loss(variables, batch, rng=jax.random.key(i))[0] for i in (0, 1))
    assert float(first) != float(second)


def test_sums_restart_after_every_report():
    task = task_of()
    update = jax.jit(functools.partial(train_step, task, log_every=2))
    state = init_state(task, jax.random.key(0), empty_batch(1, 1))
    steps = []
    for index in range(5):
        state = update(state, batch_of(index), jax.random.key(0))
        steps.append(int(state.sums.steps))
    assert steps == [1, 2, 1, 2, 1]


def poisoned(index):
    batch = batch_of(index)
    return batch.replace(weights=np.full_like(batch.weights, np.nan)) if index == 2 else batch


def test_the_first_bad_step_is_remembered():
    task = task_of()
    update = jax.jit(functools.partial(train_step, task, log_every=10))
    state = init_state(task, jax.random.key(0), empty_batch(1, 1))
    for index in range(5):
        state = update(state, poisoned(index), jax.random.key(0))
    assert int(state.bad_step) == 3


def test_skip_drops_the_update_and_counts_it():
    from registry.build import build
    from tests.support.references.models import Small

    config = Small().Task()
    config.non_finite = "skip"
    task = build(config, "task")
    update = jax.jit(functools.partial(train_step, task, log_every=10))
    state = init_state(task, jax.random.key(0), empty_batch(1, 1))
    for index in range(5):
        before = state
        state = update(state, poisoned(index), jax.random.key(0))
        assert same(before.variables, state.variables) == (index == 2)
    assert int(state.skipped) == 1
    assert int(state.sums.steps) == 4
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.variables))


class Mean(struct.PyTreeNode):
    """An update to the mean of all positions of a batch."""

    sum_m: jax.Array
    count: jax.Array

    def __add__(self, other):
        return Mean(self.sum_m + other.sum_m, self.count + other.count)

    def apply(self, weights):
        return {"mean_m": 0.5 * weights["mean_m"] + 0.5 * self.sum_m / self.count}


@pytest.mark.parametrize("pieces", [1, 4])
def test_updates_of_state_are_applied_once_whatever_the_pieces(pieces):
    """A layer with a running mean: the contract that codebooks need."""
    import fiddle as fdl
    import flax.linen as nn

    from layers.auxiliary import add_update
    from layers.norm import RMSNorm
    from layers.specs import P, Specs
    from layers.weights.initializers import Constant
    from layers.weights.weight import weight
    from registry.build import build
    from registry.templates.decoder import DecoderLm
    from tests.support.references.models import Small

    class RunningNorm(RMSNorm):
        @nn.compact
        def __call__(self, x):
            weight(self, "mean_m", x.shape[-1:], init=Constant(), role="state", collection="averages")
            add_update(self, "averages", Mean(x.sum((0, 1)), jnp.float32(x.shape[0] * x.shape[1])))
            return x

    config = Small.derive(GRADIENT_ACCUMULATION=pieces)().Task()
    config.model.final_norm = fdl.Config(RunningNorm, specs=Specs(mean_m=P(None)))
    task = build(config, "task")
    row = next(row for row in task.weight_table() if row.role == "state")
    assert row.path == "averages/final_norm/mean_m"
    assert not row.decay
    assert DecoderLm.WEIGHT_DECAY > 0
    update = jax.jit(functools.partial(train_step, task, log_every=10))
    state = init_state(task, jax.random.key(0), empty_batch(1, 1))
    updated = update(state, batch_of(0), jax.random.key(0))
    mean = updated.variables["averages"]["final_norm"]["mean_m"]
    assert float(jnp.abs(mean).max()) > 0
    features = task.model.apply(state.variables, batch_of(0).inputs, None, batch_of(0).segment_ids)[0]
    np.testing.assert_allclose(mean, 0.5 * features.mean((0, 1)), atol=1e-6)
    _, output = task.loss(updated.variables, batch_of(1))
    assert output.updates == {}, "evaluation asks for none"


def test_scalars_by_hand():
    zero = {**dict.fromkeys(vars(MetricSums.zero()), 0.0), "reports": {}}
    sums = {"loss": 2.0, "objective": 3.0, "normalizer": 6.0, "weight": 4.0, "correct": 1.0, "bytes": 8.0}
    scalars = language_scalars({**zero, **sums, "reports": {"router_dropped": 1.5}})
    assert scalars["loss"] == 0.5
    assert scalars["objective"] == 0.5
    assert scalars["router_dropped"] == 0.25
    assert scalars["accuracy"] == 0.25
    assert scalars["perplexity"] == pytest.approx(1.6487212707)
    assert scalars["bits_per_token"] == pytest.approx(0.7213475204)
    assert scalars["bits_per_byte"] == pytest.approx(0.3606737602)
    assert language_scalars(zero) == {}
    assert "bits_per_byte" not in language_scalars({**zero, "weight": 1.0, "normalizer": 1.0})
