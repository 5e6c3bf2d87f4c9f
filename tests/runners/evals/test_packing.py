"""Batches packed by length: every sequence once, few shapes, rows that devices share evenly."""

import hypothesis
import pytest
from hypothesis import strategies

from runners.evals.packing import Packer, counted, divisor_up_to

LENGTHS = strategies.lists(strategies.integers(1, 300), max_size=60)


@hypothesis.given(LENGTHS, strategies.sampled_from([1, 3, 8]), strategies.sampled_from([1, 4]), strategies.booleans())
def test_every_sequence_is_in_one_batch_that_is_long_enough(lengths, rows, positions, has_new_tokens):
    packer = Packer(
        tokens=512, longest=300, row_multiple=rows, length_multiple=positions, new_tokens=has_new_tokens * 9
    )
    batches = packer.batches(lengths)
    assert sorted(number for batch in batches for number in batch.numbers) == list(range(len(lengths)))
    for batch in batches:
        assert 0 < len(batch.numbers) <= batch.rows
        assert batch.rows % rows == batch.length % positions == 0
        assert max(lengths[number] for number in batch.numbers) <= batch.length <= 300
    assert len({(batch.rows, batch.length) for batch in batches}) <= 6


def test_lengths_are_powers_of_two_or_the_longest():
    packer = Packer(tokens=4096, longest=100)
    assert [packer.row_length(length) for length in (1, 16, 17, 64, 65, 100)] == [16, 16, 32, 64, 100, 100]
    assert [packer.rows(length, 1000) for length in (16, 64, 100)] == [256, 64, 40]
    assert packer.rows(16, 5) == 8


def test_a_few_short_sequences_join_longer_ones():
    """A further program costs more than the padding, unless the padding needs more batches."""
    packer = Packer(tokens=1024, longest=256)
    assert {batch.length for batch in packer.batches([10] * 3 + [200] * 20)} == {256}
    assert {batch.length for batch in packer.batches([10] * 300 + [200] * 20)} == {16, 256}


def test_the_longest_rows_are_first():
    lengths = [batch.length for batch in Packer(tokens=256, longest=64).batches([3] * 99 + [50] * 9 + [30] * 50)]
    assert lengths == sorted(lengths, reverse=True)
    assert len(set(lengths)) == 3


def test_numbers_below_one_are_refused():
    with pytest.raises(ValueError, match="tokens must be at least 1"):
        Packer(tokens=0, longest=4)


def test_helpers():
    assert [divisor_up_to(12, most) for most in (0, 1, 5, 12, 99)] == [1, 1, 4, 12, 12]
    assert counted(1, [(1, 2)]) == "1 batch of 1 shape"
    assert counted(1200, [(1, 2), (3, 4)]) == "1,200 batches of 2 shapes"
