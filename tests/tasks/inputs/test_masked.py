import numpy as np
import pytest

from tasks.inputs.indexed import Shard
from tasks.inputs.masked import MaskedInput
from tasks.inputs.synthetic import SyntheticPackedInput
from tests.tasks.inputs.test_packing import rows

SOURCE = SyntheticPackedInput(batch_size=64, seq_len=128, vocab_size=1000)


def masked(**fields):
    return MaskedInput(**{"source": SOURCE, "vocab_size": 1000, "mask_id": 103, **fields})


def test_shares_of_tokens():
    batch, plain = masked().batch(0), SOURCE.batch(0)
    real = plain.segment_ids != 0
    chosen = batch.weights > 0
    np.testing.assert_array_equal(batch.targets, plain.inputs)
    hidden = (batch.inputs == 103) & real & (plain.inputs != 103)
    changed = (batch.inputs != plain.inputs) & ~hidden
    assert hidden.sum() / real.sum() == pytest.approx(0.12, abs=0.01)
    assert changed.sum() / real.sum() == pytest.approx(0.015, abs=0.005)
    assert chosen.sum() / real.sum() == pytest.approx(0.15, abs=0.01)
    assert not (chosen & ~real).any()
    assert chosen[hidden | changed].all()
    np.testing.assert_array_equal(batch.inputs[~real], plain.inputs[~real])


def test_same_bits_by_seed_and_place_whatever_the_hosts():
    whole = masked().batch(3)
    parts = [masked().batch(3, Shard(index, 4)) for index in range(4)]
    np.testing.assert_array_equal(np.concatenate([part.inputs for part in parts]), whole.inputs)
    np.testing.assert_array_equal(np.concatenate([part.weights for part in parts]), whole.weights)
    assert (masked(seed=1).batch(3).inputs != whole.inputs).any()
    assert (masked().batch(4).weights != whole.weights).any()


def test_it_is_as_long_as_its_source():
    assert (masked().batch_size, masked().seq_len, masked().num_batches()) == (64, 128, None)
    assert "15.0%" in masked().describe()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mask_rate": 0.99}, "shares with a sum of at most 1"),
        ({"same_rate": -0.1}, "shares with a sum of at most 1"),
        ({"mask_id": 1000}, r"mask_id must be a token below vocab_size = 1000 \(got 1000\)"),
    ],
)
def test_bad_settings(fields, message):
    with pytest.raises(ValueError, match=message):
        masked(**fields)


@pytest.mark.parametrize(("how", "masks"), [("truncate", False), ("pack", False), ("cut", False), ("pack", True)])
def test_padding_is_neither_masked_nor_a_target(how, masks):
    source = rows([3, 9, 5], rows=how, shuffle=False, document_masks=masks)
    padded = 0
    for k in range(source.num_batches()):
        plain, batch = source.batch(k), masked(source=source, mask_rate=1.0, random_rate=0.0, same_rate=0.0).batch(k)
        real = plain.weights > 0
        padded += int((~real).sum())
        np.testing.assert_array_equal(batch.weights, plain.weights)
        np.testing.assert_array_equal(batch.inputs, np.where(real, 103, plain.inputs))
    assert padded
