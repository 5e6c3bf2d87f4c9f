"""seqio tasks as inputs: every source, packing, position, shards, snapshots."""

import json

import numpy as np
import pytest

from layers.errors import UsageError
from tasks.inputs.indexed import Shard
from tasks.inputs.seqio.rows import SeqioInput
from tasks.inputs.tbptt_chunks import TbpttInput
from tests.support.references.models import same


def rows(task, **fields):
    return SeqioInput(**{"task": task, "batch_size": 4, "seq_len": 64, **fields})


def one_pass(task, **fields):
    return rows(task, **{"shuffle": False, "num_epochs": 1, **fields})


def segments(batch):
    """Targets of each segment of a batch, as lists."""
    ids = batch.segment_ids
    for row, numbers in zip(batch.targets, ids, strict=True):
        for number in range(1, numbers.max() + 1):
            yield row[numbers == number].tolist()


def texts_of(source, batches):
    """The texts that targets encode: bytes are shifted by three special tokens, 1 is the end."""
    for index in range(batches):
        for ids in segments(source.batch(index)):
            assert ids[-1] == 1
            yield bytes(i - 3 for i in ids[:-1]).decode()


@pytest.mark.parametrize("kind", ["lines", "tfds", "tfexamples", "function", "many_files"])
def test_every_source_gives_all_texts_once(seqio_tasks, kind):
    source = one_pass(getattr(seqio_tasks, kind))
    found = list(texts_of(source, source.num_batches()))
    assert sorted(found) == sorted(seqio_tasks.texts)
    if kind != "many_files":  # whose files are read in turns
        assert found == seqio_tasks.texts


def test_packing(seqio_tasks):
    """Segments count from 1, positions restart, no token is predicted from another segment."""
    source = one_pass(seqio_tasks.lines)
    batch = source.batch(0)
    assert {str(leaf.dtype) for leaf in (batch.inputs, batch.targets, batch.segment_ids, batch.positions)} == {"int32"}
    assert batch.weights.dtype == np.float32
    assert batch.segment_ids.max() > 1
    assert np.array_equal(batch.weights, (batch.segment_ids > 0).astype(np.float32))
    assert np.all(batch.targets[batch.segment_ids == 0] == 0)
    first = np.diff(batch.segment_ids, prepend=0, axis=1) > 0
    assert np.all(batch.positions[first] == 0)
    assert np.all(batch.inputs[first] == 0)
    inside = (batch.segment_ids > 0) & ~first
    assert np.array_equal(batch.inputs[:, 1:][inside[:, 1:]], batch.targets[:, :-1][inside[:, 1:]])
    assert np.array_equal(batch.positions[:, 1:][inside[:, 1:]], batch.positions[:, :-1][inside[:, 1:]] + 1)


def test_without_packing_a_row_is_one_example(seqio_tasks):
    source = one_pass(seqio_tasks.lines, pack=False)
    batch = source.batch(0)
    assert batch.segment_ids is None
    assert source.num_batches() == 15
    wanted = seqio_tasks.texts[1].encode()
    assert batch.targets[1, : len(wanted)].tolist() == [byte + 3 for byte in wanted]
    assert batch.weights[1].sum() == len(wanted) + 1


def test_long_texts_are_cut_into_pieces_and_nothing_is_lost(seqio_tasks):
    source = one_pass(seqio_tasks.lines, seq_len=8, pack=False)
    batches = [source.batch(index) for index in range(source.num_batches())]
    tokens = np.concatenate([batch.targets[batch.weights > 0] for batch in batches])
    text = "".join(text + "\n" for text in seqio_tasks.texts).encode()
    assert bytes(10 if token == 1 else token - 3 for token in tokens) == text


def test_prefix_lm(seqio_tasks):
    """The loss is on targets; `loss_on_targets_only=False` puts it on all."""
    source = one_pass(seqio_tasks.pairs, objective="prefix_lm", seq_len=32)
    batch = source.batch(0)
    answers = (batch.targets == ord("a") + 3) & (batch.segment_ids > 0)
    questions = batch.targets == ord("q") + 3
    assert answers.any()
    assert questions.any()
    assert np.all(batch.weights[answers] == 1)
    assert np.all(batch.weights[questions] == 0)
    everything = one_pass(seqio_tasks.pairs, objective="prefix_lm", seq_len=32, loss_on_targets_only=False).batch(0)
    assert np.array_equal(everything.weights, (everything.segment_ids > 0).astype(np.float32))


def test_encoder(seqio_tasks):
    """seqio's own example of packed rows, and the same one by one."""
    packed = one_pass(seqio_tasks.masked, objective="encoder", mask_id=9, seq_len=11, batch_size=1).batch(0)
    assert packed.inputs.tolist() == [[8, 9, 9, 3, 4, 1, 8, 3, 9, 1, 0]]
    assert packed.targets.tolist() == [[8, 7, 4, 3, 4, 1, 8, 3, 6, 1, 0]]
    assert packed.segment_ids.tolist() == [[1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 0]]
    assert packed.weights.tolist() == [[0, 1, 1, 0, 0, 0, 0, 0, 1, 0, 0]]
    plain = one_pass(seqio_tasks.masked, objective="encoder", seq_len=7, batch_size=2, pack=False).batch(0)
    assert plain.is_token.astype(int).tolist() == [[1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0, 0]]
    assert plain.weights.tolist() == plain.is_token.tolist()


def test_pixels_are_bytes_in_raster_order(seqio_tasks):
    source = one_pass(seqio_tasks.pixels, seq_len=12, pack=False, batch_size=5)
    assert source.batch(0).targets.tolist() == (np.arange(60).reshape(5, 12) + 3).tolist()


@pytest.mark.parametrize("kind", ["lines", "many_files", "mixture"])
def test_any_position_is_what_reading_through_gives(seqio_tasks, kind):
    task = getattr(seqio_tasks, kind)
    source = rows(task, seed=3)
    read = [source.batch(index) for index in range(20)]
    assert same(read[0], rows(task, seed=3).batch(0))
    assert same(read[7], source.batch(7)), "going back"
    assert same(read[13], rows(task, seed=3).batch(13)), "going ahead"
    assert not same(read[0], rows(task, seed=4).batch(0))
    assert not same(read[0], read[4]), "epochs have their own order"


@pytest.mark.parametrize(("kind", "stop"), [("lines", 5), ("lines", 17), ("many_files", 8), ("mixture", 17)])
def test_a_resumed_reader_continues_with_the_same_bits(seqio_tasks, kind, stop):
    task = getattr(seqio_tasks, kind)
    iterator = rows(task, snapshot_every=5).iterator()
    for _ in range(stop):
        next(iterator)
    state = json.loads(json.dumps(iterator.state()))
    assert (state["snapshot"] is None) == (stop <= 5)
    assert len(json.dumps(state)) < 200_000
    again = rows(task, snapshot_every=5)
    resumed = again.iterator()
    resumed.restore(state)
    for _ in range(8):
        assert same(next(iterator), next(resumed))


def test_a_snapshot_is_what_makes_resuming_quick(seqio_tasks, monkeypatch):
    """From it on, not from the start."""
    source = rows(seqio_tasks.lines, snapshot_every=5)
    iterator = source.iterator()
    expected = [next(iterator) for _ in range(13)][-1]
    state = iterator.state() | {"next_batch": 12}
    assert state["snapshot"]["batch"] == 10
    resumed = rows(seqio_tasks.lines, snapshot_every=5)
    again = resumed.iterator()
    again.restore(state)
    read = []
    cursor = resumed._cursors[Shard()]
    monkeypatch.setattr(cursor, "_iterator", _counting(cursor._iterator, read))
    assert same(next(again), expected)
    assert len(read) == 3, "batches 10, 11 and 12"


def _counting(iterator, read):
    for element in iterator:
        read.append(1)
        yield element


def test_wrapped_inputs_keep_the_snapshot(seqio_tasks):
    def pieces():
        whole = rows(seqio_tasks.lines, snapshot_every=2)
        return TbpttInput(source=whole, batch_size=4, seq_len=16).iterator()

    first, second = pieces(), pieces()
    for _ in range(11):
        next(first)
    state = first.state()
    assert state["snapshot"]["batch"] == 2
    second.restore(state)
    assert same(next(first), next(second))


def test_a_state_of_other_settings_is_read_through_with_a_notice(seqio_tasks, capsys):
    iterator = rows(seqio_tasks.lines, snapshot_every=2).iterator()
    for _ in range(5):
        next(iterator)
    other = rows(seqio_tasks.lines, snapshot_every=2, seed=9)
    resumed = other.iterator()
    resumed.restore(iterator.state())
    assert "saved under other settings" in capsys.readouterr().out
    assert same(next(resumed), rows(seqio_tasks.lines, snapshot_every=2, seed=9).batch(5))


@pytest.mark.parametrize("kind", ["lines", "many_files"])
def test_shards_are_disjoint_and_complete(seqio_tasks, kind):
    """One file is shared by examples, four by files."""
    source = rows(getattr(seqio_tasks, kind), shuffle=False, pack=False, batch_size=6)
    seen = []
    for part in range(2):
        for index in range(10):  # 30 rows of 3: half of the 60
            targets = source.batch(index, Shard(part, 2)).targets
            assert targets.shape == (3, 64)
            seen += [bytes(token - 3 for token in row if token > 1).decode() for row in targets.tolist()]
    assert sorted(seen) == sorted(seqio_tasks.texts)


def test_evaluation_is_one_pass_and_the_same_on_any_number_of_hosts(seqio_tasks):
    source = one_pass(seqio_tasks.lines, split="validation", pack=False)
    assert source.num_batches() == 3  # 10 texts
    last = source.batch(2)
    assert last.weights[2:].sum() == 0
    assert last.weights[:2].sum() > 0
    parts = [one_pass(seqio_tasks.lines, split="validation", pack=False).batch(2, Shard(i, 2)) for i in range(2)]
    assert np.array_equal(np.concatenate([part.targets for part in parts]), last.targets)
    assert len(list(source.iterator())) == 3
    assert one_pass(seqio_tasks.lines, pack=False, max_rows=7).num_batches() == 2


def test_a_split_that_is_not_there_is_read_from_another(seqio_tasks):
    source = one_pass(seqio_tasks.lines, split="test", split_instead="validation")
    assert source.describe() == "seqio task 'vortaro_lines:test', split 'validation'"


BAD = [
    (
        {"task": "vortaro_lines:tset"},
        r"Unknown seqio Task or Mixture 'vortaro_lines:tset'. Did you mean 'vortaro_lines:test",
    ),
    ({"split": "valid"}, r"no split 'valid'. Did you mean 'validation'\?"),
    ({"objective": "prefix_lm"}, r"no feature 'inputs', which the objective prefix_lm needs. Valid: 'targets'."),
    (
        {"use_cached": True, "cache_dir": "cache"},
        r"not cached in .*'cache'. Run `seqio_cache_tasks --tasks=vortaro_lines:",
    ),
    ({"batch_size": 400}, r"makes \d+ rows of 64 positions, fewer than the 400 of a batch"),
    ({"task": "vortaro_tfds:pg19"}, r"cannot read the data of task 'vortaro_tfds:pg19'"),
]


@pytest.mark.parametrize(("fields", "message"), BAD, ids=[str(next(iter(fields))) for fields, _ in BAD])
def test_what_cannot_be_read_is_one_sentence(seqio_tasks, fields, message):
    with pytest.raises(UsageError, match=message) as error:
        rows(**{"task": seqio_tasks.lines, **fields}).require_data()
    assert "\n" not in str(error.value)


def test_a_part_without_examples_is_one_sentence(seqio_tasks):
    source = rows(seqio_tasks.masked, objective="encoder", batch_size=4)
    with pytest.raises(UsageError, match=r"Part 4 of 4 of seqio task 'test_masked', .* has no examples"):
        source.batch(0, Shard(3, 4))


def test_the_error_of_a_task_that_cannot_be_cached_has_the_reason(seqio_tasks):
    with pytest.raises(UsageError, match=r"its preprocessors have no seqio.CacheDatasetPlaceholder"):
        rows(seqio_tasks.masked, objective="encoder", use_cached=True).require_data()


def test_the_error_of_a_function_without_a_seed_names_the_seed(seqio_tasks):
    import seqio
    import tensorflow as tf

    seqio.TaskRegistry.add(
        "test_seedless",
        source=seqio.FunctionDataSource(
            lambda split, shuffle_files: tf.data.Dataset.from_tensors({"targets": [3, 4]}), splits=["train"]
        ),
        preprocessors=[],
        output_features={"targets": seqio.Feature(seqio.PassThroughVocabulary(20), add_eos=False)},
    )
    with pytest.raises(UsageError, match=r"a function without a `seed` argument. Add `seed=None`"):
        rows("test_seedless").require_data()
