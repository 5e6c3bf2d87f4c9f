import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layers.errors import UsageError
from tasks.inputs import byte_text
from tasks.inputs.byte_text import SPLITS, ByteText, StandardLibrary
from tasks.inputs.indexed import Shard
from tasks.inputs.rows import TokensInput
from tasks.inputs.synthetic import SyntheticPackedInput
from tests.support.references.models import same


@pytest.fixture
def text(tmp_path, monkeypatch):
    path = tmp_path / "text.txt"
    path.write_bytes(bytes(range(1, 201)))  # every byte value is its position
    monkeypatch.setattr(byte_text, "plain_text", lambda name, _: name)  # such bytes are not UTF-8
    return str(path)


def text_input(path, split_fractions=(0.9, 0.05, 0.05), **fields):
    source = ByteText(path=path, fractions=split_fractions)
    return TokensInput(**{"batch_size": 4, "seq_len": 8, "source": source, **fields})


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 99), index=st.integers(0, 10**6), seq_len=st.integers(4, 40), vocab=st.integers(5, 300))
def test_synthetic_rows_are_packed_right(seed, index, seq_len, vocab):
    source = SyntheticPackedInput(batch_size=2, seq_len=seq_len, vocab_size=vocab, seed=seed)
    batch = source.batch(index)
    assert same(batch, source.batch(index))
    for row in range(2):
        inputs, targets, weights, ids, positions = (np.asarray(field)[row] for field in list(vars(batch).values())[:5])
        real = ids > 0
        assert real[0]
        assert np.all(weights == real)
        assert np.all(np.diff(real.astype(int)) <= 0), "padding is at the end"
        for segment in range(1, ids.max() + 1):
            (at,) = np.nonzero(ids == segment)
            assert np.all(np.diff(at) == 1)
            assert np.array_equal(positions[at], np.arange(len(at)))
            stride = (targets[at] - inputs[at]) % vocab
            assert len(set(stride.tolist())) == 1
            assert 1 <= stride[0] <= 4
            assert np.array_equal(inputs[at][1:], targets[at][:-1])


def test_synthetic_rows_hold_several_segments():
    batch = SyntheticPackedInput(batch_size=16, seq_len=64, vocab_size=50).batch(0)
    assert batch.segment_ids.max() >= 3
    assert len({tuple(row) for row in batch.segment_ids}) > 1


@pytest.mark.parametrize("count", [1, 2, 4])
def test_hosts_read_disjoint_rows_that_make_the_batch(text, count):
    for source in (
        text_input(text, split_fractions=(1.0, 0.0, 0.0)),
        SyntheticPackedInput(batch_size=4, seq_len=8, vocab_size=9),
    ):
        whole = source.batch(3)
        parts = [source.batch(3, Shard(i, count)) for i in range(count)]
        for field, value in vars(whole).items():
            if value is not None:
                assert np.array_equal(np.concatenate([getattr(part, field) for part in parts]), value)


def test_a_batch_must_be_shared_equally(text):
    with pytest.raises(UsageError, match="batch of 4 rows cannot be split equally over 3 hosts"):
        text_input(text).batch(0, Shard(0, 3))


def test_an_epoch_visits_every_window_once_and_the_next_starts_elsewhere(text):
    source = text_input(text, batch_size=1, split_fractions=(1.0, 0.0, 0.0))
    windows = (200 - 1) // 8 - 1
    first = [int(source.batch(i).inputs[0, 0]) for i in range(windows)]
    assert len(set(first)) == windows
    assert {b - a for a, b in itertools.pairwise(sorted(first))} == {8}
    assert first != sorted(first)
    second = [int(source.batch(windows + i).inputs[0, 0]) for i in range(windows)]
    assert sorted(second) != sorted(first), "cut at another offset"
    assert len(set(second)) == windows


def test_targets_are_inputs_one_later(text):
    batch = text_input(text, split_fractions=(1.0, 0.0, 0.0)).batch(5)
    assert np.array_equal(batch.targets, batch.inputs + 1)
    assert batch.segment_ids is None
    assert batch.inputs.dtype == batch.targets.dtype == np.int32


@pytest.mark.parametrize("seq_len", [7, 8, 50])
def test_one_pass_predicts_every_byte_but_the_first_once(text, seq_len):
    source = text_input(text, split="validation", shuffle=False, seq_len=seq_len, split_fractions=(0.5, 0.3, 0.2))
    seen = []
    for batch in source.iterator():
        seen += batch.targets[batch.weights > 0].tolist()
    assert seen == list(range(102, 161))


def test_max_rows_are_spread_over_the_split(text):
    source = text_input(text, shuffle=False, split_fractions=(1.0, 0.0, 0.0), max_rows=5)
    starts = [
        int(row[0])
        for batch in source.iterator()
        for row, w in zip(batch.inputs, batch.weights, strict=True)
        if w.any()
    ]
    assert starts == [1, 41, 81, 121, 161]


def test_splits_of_a_file_follow_in_order(text):
    cut = [
        text_input(text, split=split, shuffle=False, split_fractions=(0.5, 0.3, 0.2)).tokens.read(0, 200)
        for split in SPLITS
    ]
    assert np.array_equal(np.concatenate(cut), np.arange(1, 201))
    assert [len(part) for part in cut] == [100, 60, 40]


def test_iterator_resumes_without_reading(text, monkeypatch):
    source = text_input(text)
    iterator = source.iterator()
    batches = [next(iterator) for _ in range(6)]
    state = {"next_batch": 4}
    read = []
    monkeypatch.setattr(TokensInput, "batch", lambda self, index, shard: read.append(index) or batches[0])
    again = source.iterator()
    again.restore(state)
    next(again)
    assert read == [4]
    monkeypatch.undo()
    again.restore(state)
    assert same(next(again), batches[4])
    assert again.state() == {"next_batch": 5, "data": source.fingerprint}


def test_standard_library_splits_are_disjoint_and_large():
    sizes = {split: len(StandardLibrary().read(split)) for split in SPLITS}
    assert sizes["train"] > 5_000_000
    assert 0.01 < sizes["validation"] / sizes["train"] < 0.2
    assert StandardLibrary().read("test")[-1] == 0
    documents = [set(bytes(StandardLibrary().read(split)).split(b"\0")) - {b""} for split in SPLITS]
    shared = documents[0] & documents[1]
    assert sum(map(len, shared)) < 0.02 * sizes["validation"], "only boilerplate files may be in both"


@pytest.mark.parametrize(
    ("content", "fields", "message"),
    [
        (None, {}, "cannot be read: No such file"),
        (b"", {}, "is empty"),
        (b"short", {}, r"train split of .* has 4 tokens, fewer than the 9 needed"),
        (b"x" * 100, {"split_fractions": (0.5, 0.1, 0.1)}, "must be three numbers of at least 0 with sum 1"),
        (b"x" * 100, {"split": "valid"}, r"Unknown split 'valid'. Did you mean 'validation'"),
    ],
)
def test_bad_text(tmp_path, content, fields, message):
    path = tmp_path / "bad.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        text_input(str(path), **fields).batch(0)


def test_unreadable_text(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        text_input(str(tmp_path)).batch(0)
