"""Mixtures: shares exact, order by seed, position k direct; held-out data one after the other."""

import dataclasses

import numpy as np
import pytest

from layers.errors import UsageError
from tasks.inputs.indexed import Shard
from tasks.inputs.mixture import ChainedInput, MixtureInput
from tasks.inputs.rows import TokensInput
from tasks.inputs.synthetic import SyntheticPackedInput
from tasks.vocabularies.vocabulary import ByteVocabulary
from tests.support.references.models import same
from tests.support.sources_of import cached

SIZES = {"batch_size": 10, "seq_len": 8}


def text(tmp_path, name, **fields):
    documents = tuple(f"{name}{i:03}" for i in range(60))
    source = cached(tmp_path / name, documents, fractions=(1.0, 0.0, 0.0))
    return TokensInput(**{"source": source, "rows": "restart", **SIZES, **fields})


def letters(batch):
    """The letters in a batch's rows."""
    return [{chr(i - 3) for i in row if 100 <= i <= 102} for row in batch.targets.tolist()]


def test_every_thousand_rows_have_the_shares_and_hosts_share_them(tmp_path):
    mixed = MixtureInput(sources=(text(tmp_path, "a"), text(tmp_path, "b"), text(tmp_path, "c")), weights=(5, 3, 0.01))
    assert mixed.shares.tolist() == [624, 375, 1]
    places = [mixed.place(number) for number in range(3000)]
    for period in range(3):
        found = [source for source, _ in places[period * 1000 : (period + 1) * 1000]]
        assert np.bincount(found).tolist() == [624, 375, 1]
    for source in range(3):
        assert [row for found, row in places if found == source] == list(range(3 * int(mixed.shares[source])))
    whole = mixed.batch(37)
    assert np.array_equal(np.concatenate([mixed.batch(37, Shard(i, 2)).targets for i in range(2)]), whole.targets)
    assert all(len(found) == 1 for found in letters(whole))
    iterator = mixed.iterator()
    read = [next(iterator) for _ in range(40)]
    assert same(read[37], whole)
    other = MixtureInput(sources=mixed.sources, weights=mixed.weights, seed=1)
    assert [other.place(n)[0] for n in range(50)] != [source for source, _ in places[:50]]


def test_rows_with_and_without_segments_mix(tmp_path):
    synthetic = SyntheticPackedInput(vocab_size=30, **SIZES)
    batch = MixtureInput(sources=(text(tmp_path, "a"), synthetic), weights=(1, 1)).batch(0)
    assert batch.segment_ids.shape == batch.inputs.shape
    plain = [row for row, found in enumerate(letters(batch)) if found]
    assert np.all(batch.segment_ids[plain] == 1)
    assert np.all(batch.positions[plain] == np.arange(8))


def test_held_out_parts_follow_each_other(tmp_path):
    parts = [text(tmp_path, name, shuffle=False) for name in "ab"]
    chained = ChainedInput(sources=tuple(parts))
    counts = [part.num_batches() for part in parts]
    assert chained.num_batches() == sum(counts)
    assert same(chained.batch(counts[0] + 1), parts[1].batch(1))
    assert same(chained.batch(counts[0] - 1), parts[0].batch(counts[0] - 1))
    assert (chained.byte_counts, chained.byte_ratio) == ((480, 480), 1.0)
    segmented = SyntheticPackedInput(vocab_size=30, batches=2, **SIZES)
    assert ChainedInput(sources=(parts[0], segmented)).batch(0).segment_ids is not None


def test_bytes_of_a_mixture_are_those_of_its_rows(tmp_path):
    class Halved(ByteVocabulary):
        def token_bytes(self):
            return super().token_bytes() / 2

    lossy = cached(tmp_path / "lossy", ("ab" * 30,), fractions=(1.0, 0.0, 0.0), vocabulary=Halved(special_tokens=3))
    sources = (text(tmp_path, "a"), TokensInput(source=lossy, rows="restart", **SIZES))
    mixed = MixtureInput(sources=sources, weights=(3, 1))
    exact, lost = (240 / 300, 60 / 61)  # bytes per token of text
    assert mixed.byte_ratio == pytest.approx((3 * exact + lost) / (3 * exact + lost / 2))
    chained = ChainedInput(sources=tuple(dataclasses.replace(source, shuffle=False) for source in sources))
    assert chained.byte_ratio == pytest.approx((240 + 60) / (240 + 30))


def test_bad_mixtures(tmp_path):
    source = text(tmp_path, "a")
    for sources, weights, message in [
        ((), (), "needs a source"),
        ((source,), (1, 2), "one for each source"),
        ((source, source), (1, -1), "above 0"),
        ((source, source), (1, 1e-4), r"weight 0.0001 is less than one row in 1000"),
        ((source, text(tmp_path, "b", seq_len=4)), (1, 1), "rows of one size"),
    ]:
        with pytest.raises(UsageError, match=message):
            MixtureInput(sources=sources, weights=weights)
