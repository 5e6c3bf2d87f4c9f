"""The input of a run in phases."""

import dataclasses

import jax
import numpy as np
import pytest

from tasks.inputs.indexed import IndexedInput, Shard
from tasks.inputs.phased import PhasedInput
from tasks.inputs.synthetic import SyntheticPackedInput

PHASES = (
    SyntheticPackedInput(vocab_size=50, batch_size=8, seq_len=16, seed=1),
    SyntheticPackedInput(vocab_size=50, batch_size=4, seq_len=32, seed=2),
    SyntheticPackedInput(vocab_size=50, batch_size=8, seq_len=16, seed=3),
)
PHASED = PhasedInput(phases=PHASES, steps=(3, 2, 4))


def equal(one, other):
    return jax.tree.all(jax.tree.map(np.array_equal, one, other))


def test_batches_are_those_of_the_phases_in_order():
    assert PHASED.num_batches() == 9
    assert PHASED.borders == (3, 5)
    places = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (2, 3)]
    for index, (phase, number) in enumerate(places):
        assert PHASED.place(index) == (phase, number)
        assert equal(PHASED.batch(index), PHASES[phase].batch(number))


def test_hosts_read_the_rows_of_the_complete_batch_across_a_border():
    for count in (1, 2, 4):
        iterators = [PHASED.iterator(Shard(index, count)) for index in range(count)]
        for number, parts in enumerate(zip(*iterators, strict=True)):
            joined = jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts)
            assert equal(joined, PHASED.batch(number))
            assert all(iterator.state()["next_batch"] == number + 1 for iterator in iterators)


def test_a_phase_describes_its_own_batches():
    for number, source in enumerate(PHASES):
        own = dataclasses.replace(PHASED, phase=number)
        assert (own.batch_size, own.seq_len, own.shapes()) == (source.batch_size, source.seq_len, source.shapes())
        assert equal(own.batch(4), PHASED.batch(4)), "batches are those of the complete run"


class Read(SyntheticPackedInput):
    """An input with a fingerprint and a snapshot."""

    @property
    def fingerprint(self):
        return f"data {self.seed}"

    def snapshot(self, shard, next_batch):
        return {"snapshot": f"{self.seed} at {next_batch}"}

    def resume(self, state, shard):
        RESUMED.append((self.seed, state["snapshot"], state["next_batch"]))


RESUMED: list[tuple] = []


def test_state_is_that_of_the_phase_read_last():
    phases = tuple(Read(vocab_size=50, batch_size=2, seq_len=8, seed=seed) for seed in (1, 2))
    phased = PhasedInput(phases=phases, steps=(2, 3))
    iterator = phased.iterator()
    states = [(next(iterator), iterator.state())[1] for _ in range(5)]
    assert [state["snapshot"] for state in states] == ["1 at 1", "1 at 2", "2 at 1", "2 at 2", "2 at 3"]
    assert [state["data"] for state in states] == ["data 1"] * 2 + ["data 1; data 2"] * 3
    assert [phased.fingerprint_of(count) for count in (0, 2, 3)] == ["data 1", "data 1", "data 1; data 2"]
    RESUMED.clear()
    for state in (states[1], states[3]):
        phased.iterator().restore(state)
    assert RESUMED == [(1, "1 at 2", 2), (2, "2 at 2", 2)]


@pytest.mark.parametrize("steps", [(3,), (3, 0, 1)])
def test_each_phase_needs_updates(steps):
    with pytest.raises(ValueError, match="steps must be above 0, one for each of 3 phases"):
        PhasedInput(phases=PHASES, steps=steps)


def test_inputs_without_phases_have_no_borders():
    source: IndexedInput = PHASES[0]
    assert source.borders == ()
    assert source.fingerprint_of(3) is source.fingerprint
