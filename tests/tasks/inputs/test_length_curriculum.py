"""Short rows first: which lengths come when, and that nothing but the length differs from the source."""

import jax
import numpy as np
import pytest

from layers.errors import UsageError
from registry.build import build
from tasks.inputs.indexed import Shard
from tasks.inputs.length_curriculum import LengthCurriculumInput
from tasks.inputs.masked import MaskedInput
from tasks.inputs.synthetic import SyntheticPackedInput
from tests.support.references.models import Small, same

SOURCE = SyntheticPackedInput(batch_size=4, seq_len=16, vocab_size=9)


def staged(lengths=(4, 8), steps=10, source=SOURCE, **fields):
    return LengthCurriculumInput(
        source=source, lengths=lengths, steps=steps, batch_size=source.batch_size, seq_len=source.seq_len, **fields
    )


def test_stages_are_equally_long():
    """Lengths and tokens of a row by steps, from the doctests of fattorib/transformer."""
    source = staged((256, 512), 1200, SyntheticPackedInput(batch_size=1, seq_len=1024, vocab_size=9))
    assert [source.length(step) for step in (0, 400, 599, 600, 800, 1199, 1200, 1300)] == [
        *(256, 256, 256, 512, 512, 512, 1024, 1024)
    ]
    seen = np.cumsum([source.length(step) for step in range(1300)])
    assert [int(seen[step - 1]) for step in (400, 800, 1300)] == [102400, 256000, 563200]
    assert source.short_batches == 1200
    assert source.shapes() == [(1, 256), (1, 512), (1, 1024)]


def test_stages_that_do_not_divide_the_steps_differ_by_one():
    source = staged((2, 4, 8), 10)
    assert [source.length(step) for step in range(11)] == [2] * 4 + [4] * 3 + [8] * 3 + [16]


def test_linear_growth_is_rounded_down_to_the_multiple():
    knobs = {"SEQ_LEN": 64, "LENGTH_START": 16, "LENGTH_MULTIPLE": 8, "STAGED_STEPS": 25, "NUM_STEPS": 30}
    source = build(Small.derive(**knobs)().Train(), "train").input
    exact = [16 + (64 - 16) * step // 25 for step in range(25)]
    assert [source.length(step) for step in range(25)] == [length // 8 * 8 for length in exact]
    assert source.length(25) == 64


def leaves(batch):
    return {name: array for name, array in vars(batch).items() if array is not None}


@pytest.mark.parametrize("index", [0, 4, 5, 9, 10, 1000])
def test_truncated_rows_are_the_beginnings_of_the_sources(index):
    length = {0: 4, 4: 4, 5: 8, 9: 8}.get(index, 16)
    batch, whole = leaves(staged().batch(index)), leaves(SOURCE.batch(index))
    assert batch.keys() == whole.keys()
    for name, array in batch.items():
        assert np.array_equal(array, whole[name][:, :length]), name


@pytest.mark.parametrize("index", [0, 4, 5, 9, 10, 1000])
def test_reshaped_rows_hold_all_of_the_sources(index):
    source = staged(rows="reshape")
    batch, whole = leaves(source.batch(index)), leaves(SOURCE.batch(index))
    assert batch.keys() == whole.keys()
    shape = {0: (16, 4), 4: (16, 4), 5: (8, 8), 9: (8, 8)}.get(index, (4, 16))
    assert shape in source.shapes()
    for name, array in batch.items():
        assert array.shape == shape
        assert np.array_equal(array.ravel(), whole[name].ravel()), name


@pytest.mark.parametrize("rows", ["truncate", "reshape"])
@pytest.mark.parametrize("count", [2, 4])
def test_hosts_share_short_batches(rows, count):
    source = staged(rows=rows)
    for index in (1, 7, 12):
        parts = [source.batch(index, Shard(i, count)) for i in range(count)]
        assert same(jax.tree.map(lambda *x: np.concatenate(x), *parts), source.batch(index))


def test_any_position_is_reached_directly(monkeypatch):
    """Across the switch of lengths: batch k is a function of k."""
    iterator = staged().iterator()
    batches = [next(iterator) for _ in range(12)]
    read = []
    read_source = SyntheticPackedInput.batch
    monkeypatch.setattr(
        SyntheticPackedInput, "batch", lambda self, index, shard: read.append(index) or read_source(self, index, shard)
    )
    for index in (4, 5, 9, 10):
        again = staged().iterator()
        again.restore({"next_batch": index})
        assert same(next(again), batches[index])
    assert read == [4, 5, 9, 10]


def test_hidden_tokens_of_an_encoder_are_staged_too():
    masked = MaskedInput(source=SOURCE, vocab_size=9, mask_id=3)
    assert staged(source=masked).batch(0).inputs.shape == (4, 4)


def test_evaluation_reads_complete_rows():
    experiment = Small.derive(LENGTH_STAGES=(4, 8), STAGED_STEPS=10)()
    assert build(experiment.Train(), "train").input.batch(0).inputs.shape == (8, 4)
    held_out, plain = (build(e.Test(), "test").inputs["validation"] for e in (experiment, Small()))
    assert held_out == plain
    assert held_out.shapes() == [(8, 16)]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lengths": (4, 17)}, r"a stage must have between 1 and seq_len = 16 positions \(got 17\)"),
        ({"lengths": (0,)}, r"a stage must have between .* \(got 0\)"),
        ({"lengths": (4, 5), "rows": "reshape"}, r"a stage with rows = reshape must divide seq_len = 16 \(got 5"),
        ({"lengths": (2, 4, 8), "steps": 2}, r"between 1 and steps = 2 stages \(got 3\)"),
    ],
)
def test_bad_stages(fields, message):
    with pytest.raises(ValueError, match=message):
        staged(**fields)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"LENGTH_STAGES": (4,)}, "STAGED_STEPS = None and the lengths of its stages"),
        ({"STAGED_STEPS": 4}, "STAGED_STEPS = 4 and the lengths of its stages"),
        ({"LENGTH_STAGES": (4,), "LENGTH_START": 4, "STAGED_STEPS": 4}, "both set the stages. Remove one"),
        (
            {"LENGTH_START": 5, "LENGTH_MULTIPLE": 4, "STAGED_STEPS": 4},
            r"LENGTH_MULTIPLE must divide LENGTH_START = 5 and SEQ_LEN = 16 \(got 4\)",
        ),
        (
            {"LENGTH_START": 16, "LENGTH_MULTIPLE": 4, "STAGED_STEPS": 4},
            r"LENGTH_START must be below SEQ_LEN = 16 \(got 16\)",
        ),
        (
            {"LENGTH_STAGES": (4,), "STAGED_STEPS": 4, "TBPTT_LEN": 8},
            "STAGED_STEPS does not work with TBPTT_LEN .got 8",
        ),
    ],
)
def test_senseless_knobs(knobs, message):
    with pytest.raises(UsageError, match=message):
        Small.derive(**knobs)().Train()
