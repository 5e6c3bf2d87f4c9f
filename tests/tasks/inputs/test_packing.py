"""Rows of documents: nothing lost, nothing twice, nothing read across documents."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layers.errors import UsageError
from tasks.batch import OPTIONAL_FIELDS
from tasks.inputs import shuffling
from tasks.inputs.byte_text import ByteText
from tasks.inputs.indexed import Shard
from tasks.inputs.packing import best_fit
from tasks.inputs.rows import TokensInput
from tasks.inputs.tokens import Tokens
from tests.support.references.models import same

STOP = 1


@dataclasses.dataclass(frozen=True)
class Documents:
    """A TokenSource: documents of these lengths, every token different, a stop token after each, in two pieces."""

    lengths: tuple
    ends: bool = True
    stop_id: int | None = STOP

    def tokens(self, split):
        documents, at = [], 10
        for length in self.lengths:
            documents.append(np.append(np.arange(at, at + length), STOP))
            at += length
        ends = np.cumsum([len(document) for document in documents])
        half = len(documents) // 2
        cut = int(ends[half - 1]) if half else 0
        ids = np.concatenate(documents)
        pieces = [ids[:cut], ids[cut:]]
        known = [ends[:half], ends[half:] - cut] if self.ends else None
        return Tokens(pieces, known, stop_id=self.stop_id)

    def describe(self):
        return "documents"

    def texts(self, split):
        raise NotImplementedError


def rows(lengths, **fields):
    source = fields.pop("source", Documents(tuple(lengths)))
    return TokensInput(**{"source": source, "batch_size": 2, "seq_len": 8, "document_masks": True, **fields})


def read_all(source):
    return [source.batch(k) for k in range(source.num_batches())]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=60), st.integers(1, 16))
@settings(max_examples=200, deadline=None)
def test_best_fit_packs_every_token_once_within_the_rows(lengths, capacity):
    row, document, start = best_fit(np.array(lengths), capacity)
    assert np.all(np.diff(row) >= 0)
    used = np.zeros(row.max() + 1 if len(row) else 0, int)
    seen = {number: set() for number in range(len(lengths))}
    for r, d, s in zip(row, document, start, strict=True):
        length = min(lengths[d] - s, capacity)
        assert length > 0
        used[r] += length
        assert not seen[d] & set(range(s, s + length))
        seen[d] |= set(range(s, s + length))
    assert used.max(initial=0) <= capacity
    assert all(len(seen[number]) == length for number, length in enumerate(lengths))
    limited = best_fit(np.array(lengths), capacity, 2)
    assert np.bincount(limited[0]).max(initial=0) <= 2
    assert len(limited[0]) == len(row), "the same pieces"
    # Two rows that would fit into one are never both begun.
    light = np.sort(used)[:2]
    assert len(light) < 2 or light.sum() > capacity


@given(st.lists(st.integers(1, 20), min_size=1, max_size=30), st.booleans())
@settings(max_examples=60, deadline=None)
def test_packed_rows_hold_every_document_and_predict_it_from_itself(lengths, ends):
    source = rows(lengths, rows="pack", shuffle=False, source=Documents(tuple(lengths), ends))
    targets, before = [], {10: STOP}
    at = 10
    for length in lengths:
        tokens = [*range(at, at + length)]
        before |= dict(zip(tokens, [STOP, *tokens[:-1]], strict=True))
        targets += [*tokens, STOP]
        at += length
    seen = []
    for batch in read_all(source):
        real = batch.weights > 0
        assert np.array_equal(real, batch.segment_ids > 0)
        seen += batch.targets[real].tolist()
        for i, t in zip(batch.inputs[real], batch.targets[real], strict=True):
            assert t == STOP or before[int(t)] == i
        for segments, positions in zip(batch.segment_ids, batch.positions, strict=True):
            for number in range(1, segments.max() + 1):
                assert positions[segments == number].tolist() == list(range(np.count_nonzero(segments == number)))
    assert sorted(seen) == sorted(targets)


def test_cut_rows_begin_a_segment_where_a_document_begins():
    batch = rows([3, 9, 2], rows="cut", shuffle=False, batch_size=1, seq_len=16).batch(0)
    assert batch.inputs[0].tolist() == [10, 11, 12, STOP, *range(13, 22), STOP, 22, 23]
    assert batch.targets[0, :-1].tolist() == batch.inputs[0, 1:].tolist()
    assert batch.segment_ids[0].tolist() == [1, 1, 1, *[2] * 10, 3, 3, 3]
    assert batch.positions[0].tolist() == [0, 1, 2, *range(10), 0, 1, 2]
    assert batch.weights[0].tolist() == [1] * 16


def test_an_index_of_documents_counts_where_no_stop_token_is():
    ids, ends = np.arange(10, 40), np.array([5, 6, 20, 30])
    tokens = Tokens([ids[:20], ids[20:]], [ends[:3], ends[3:] - 20], stop_id=STOP, stops_end=False)
    source = dataclasses.make_dataclass("Indexed", [])()
    source.tokens, source.describe = lambda split: tokens, lambda: "indexed"
    batch = rows([], source=source, shuffle=False, batch_size=1, seq_len=29).batch(0)
    assert batch.targets[0].tolist() == list(range(11, 40))
    begins = np.flatnonzero(batch.positions[0] == 0).tolist()
    assert begins == [0, 4, 5, 19], "targets are one token later"
    assert [int(batch.inputs[0, i]) for i in begins] == [10, STOP, STOP, STOP]
    assert batch.segment_ids[0].tolist() == [1] * 4 + [2] + [3] * 14 + [4] * 10
    restarted = rows([], source=source, shuffle=False, batch_size=2, seq_len=15, rows="restart").batch(0)
    assert restarted.inputs[1].tolist()[:7] == [STOP, 25, 26, 27, 28, STOP, 30]
    packed = rows([], source=source, shuffle=False, batch_size=4, seq_len=14, rows="pack").batch(0)
    assert sorted(packed.targets[packed.weights > 0].tolist()) == ids.tolist()


def test_any_place_of_a_great_order_is_known_without_the_others():
    for count in (1, 2, 3, 1000, 4097):
        keys = shuffling._keys(7, count)
        assert sorted(shuffling.walk(place, count, keys) for place in range(count)) == list(range(count))
    great = 10**12
    places = [shuffling.shuffled(place, great, 1, 0) for place in range(2000)]
    assert len(set(places)) == 2000
    assert abs(np.mean(places) / great - 0.5) < 0.03
    assert np.mean(np.diff(places) > 0) == pytest.approx(0.5, abs=0.05)
    assert places[:5] != [shuffling.shuffled(place, great, 1, 1) for place in range(5)]


def test_rows_that_restart_know_where_documents_begin():
    batch = rows([3, 9, 2], rows="restart", shuffle=False, batch_size=2).batch(0)
    assert batch.inputs[0].tolist() == [STOP, 10, 11, 12, STOP, 13, 14, 15]
    assert batch.segment_ids[0].tolist() == [1, 1, 1, 1, 2, 2, 2, 2]
    assert batch.inputs[1].tolist() == [STOP, 17, 18, 19, 20, 21, STOP, 22]
    assert batch.segment_ids[1].tolist() == [1, 1, 1, 1, 1, 1, 2, 2]


def test_truncated_rows_are_the_beginnings_of_documents():
    source = rows([3, 12], rows="truncate", shuffle=False, document_masks=False)
    batch = source.batch(0)
    assert source.num_batches() == 1
    assert batch.targets.tolist() == [[10, 11, 12, STOP, 0, 0, 0, 0], [*range(13, 21)]]
    assert batch.weights.sum(axis=1).tolist() == [4, 8]
    assert batch.segment_ids is None


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("how", ["cut", "restart", "pack", "truncate"])
def test_rows_that_can_have_padding_mark_it_without_masks(how, shuffle):
    source = rows([3, 12, 5, 30, 7], rows=how, shuffle=shuffle, document_masks=False)
    for index in range(source.num_batches() or 4):
        batch = source.batch(index)
        assert source.fields == frozenset(name for name in OPTIONAL_FIELDS if getattr(batch, name) is not None)
        if how in ("cut", "restart") and shuffle:
            assert batch.is_token is None
            assert batch.weights.all()
        else:
            np.testing.assert_array_equal(batch.is_token, batch.weights > 0)


LENGTHS = range(1, 59)
BATCHES = {"cut": 4, "restart": 13, "pack": 6, "truncate": 2}  # rows of one; an epoch is full batches


def epoch(source, number):
    """All rows of an epoch, in the order they are read in."""
    batches, rest = divmod(source._whole_rows, source.batch_size)
    assert rest == 0
    read = [source.batch(k) for k in range(number * batches, (number + 1) * batches)]
    return [
        jax.tree.map(lambda array, row=row: array[row], batch) for batch in read for row in range(len(batch.inputs))
    ]


def content(row):
    """All that is in a row, to compare and to sort by."""
    return tuple(array.tobytes() for array in jax.tree.leaves(row))


@pytest.mark.parametrize("how", ["restart", "pack", "truncate"])
def test_an_epoch_visits_every_row_once(how):
    source = rows(LENGTHS, rows=how, batch_size=BATCHES[how], seed=5)
    in_order = rows(LENGTHS, rows=how, shuffle=False)
    expected = [content(in_order.row(number)) for number in range(source._whole_rows)]
    assert len({*expected}) == len(expected), "no two are equal"
    left_out = range(source._whole_rows, in_order.num_rows)
    assert len(left_out) == (how == "restart"), "what is left fills no row"
    assert not any(in_order.row(number).weights.all() for number in left_out)
    first, second = ([content(row) for row in epoch(source, number)] for number in range(2))
    assert sorted(first) == sorted(second) == sorted(expected)
    assert first != second
    assert expected not in (first, second)


def test_an_epoch_of_windows_covers_the_text_from_its_offset_on():
    source = rows(LENGTHS, rows="cut", batch_size=BATCHES["cut"], seed=5)
    ids = source.tokens.read(0, len(source.tokens)).tolist()
    offsets = set()
    for number in range(4):
        places = []
        for row in epoch(source, number):
            window = [*row.inputs.tolist(), int(row.targets[-1])]
            assert row.targets.tolist() == window[1:]
            assert row.weights.all()
            found = [place for place in range(len(ids) - 8) if ids[place : place + 9] == window]
            assert len(found) == 1
            places += found
        offset, end = min(places), max(places) + 9
        assert offset < 8
        assert sorted(places) == list(range(offset, end - 8, 8)), "consecutive, each once"
        assert places != sorted(places)
        assert len(ids) - end < 16, "less than two windows are left out"
        offsets.add(offset)
    assert len(offsets) > 1


@pytest.mark.parametrize("how", ["cut", "restart", "pack", "truncate"])
def test_position_k_is_a_function_of_k(how):
    source = rows(range(1, 60), rows=how, batch_size=4, seed=5)
    iterator = source.iterator()
    batches = [next(iterator) for _ in range(50)]
    assert all(same(source.batch(k), batches[k]) for k in (49, 3, 17))
    again = rows(range(1, 60), rows=how, batch_size=4, seed=5).iterator()
    again.restore({"next_batch": 31})
    assert same(next(again), batches[31])
    halves = [source.batch(9, Shard(index, 2)) for index in range(2)]
    assert np.array_equal(np.concatenate([half.targets for half in halves]), batches[9].targets)
    assert not same(rows(range(1, 60), rows=how, batch_size=4, seed=6).batch(0), batches[0])


def test_the_standard_library_fills_rows_of_2048():
    source = TokensInput(
        source=ByteText(), rows="pack", document_masks=True, shuffle=False, batch_size=16, seq_len=2048
    )
    last = (source.num_batches() or 0) - 2
    batches = [source.batch(k) for k in [*range(0, last, 100), last]]
    real = sum(float(batch.weights.sum()) for batch in batches) / sum(batch.weights.size for batch in batches)
    assert real > 0.97
    whole = len(source.tokens) / ((source.num_rows or 0) * 2048)
    assert whole > 0.97
    assert batches[-1].segment_ids.max() > 1, "what is left of long files shares rows"


def test_documents_without_ends_are_refused():
    source = Documents((3, 4), ends=False, stop_id=None)
    for fields in ({"rows": "pack"}, {"rows": "cut"}, {"rows": "restart", "document_masks": False}):
        with pytest.raises(UsageError, match=r"needs to know where documents end, but documents has no stop token"):
            rows([], source=source, **fields).require_data()
    rows([], source=source, rows="cut", document_masks=False, seq_len=4).require_data()
