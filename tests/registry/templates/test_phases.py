"""PHASES: experiments of the phases, learning rates, rows of their data, refusals."""

import collections
import math

import numpy as np
import pytest

from layers.errors import UsageError
from registry.build import build, config_of
from registry.checks import check
from registry.experiment import owner
from registry.experiments.gpt import GptStdlib
from registry.experiments.tiny import StdlibTiny
from registry.overrides import override
from registry.phase import Phase
from registry.records.diff import diff
from registry.records.snapshot import snapshot
from registry.resolve import resolve
from registry.templates.phases import shortened
from registry.values import parse, show

LONG = Phase(steps=4, schedule="sqrt", end_factor=0, SEQ_LEN=64, BATCH_SIZE=4, ROTARY_BASE=1e5)


def experiment(*phases, base=StdlibTiny, **knobs):
    small = {
        "NUM_STEPS": 10,
        "WARMUP_STEPS": 2,
        "SCHEDULE": "constant",
        "SEQ_LEN": 32,
        "BATCH_SIZE": 8,
        "NUM_LAYERS": 1,
    }
    return base.derive(**small | knobs, PHASES=(Phase(), *phases))()


def train_input(made):
    return build(config_of(made, "train"), "train").input


def test_later_phases_have_the_knobs_of_the_run_and_their_own():
    run = experiment(LONG, Phase(steps=2, schedule="constant"))
    first, second, third = run.phases
    assert first is run
    assert [phase.phase for phase in run.phases] == [0, 1, 2]
    assert (second.SEQ_LEN, second.BATCH_SIZE, third.SEQ_LEN) == (64, 4, 32)
    assert owner(type(second), "SEQ_LEN") == "PHASES[1]"
    assert owner(type(second), "NUM_LAYERS") == "derive()"
    assert second.phases[0].phase == 0
    assert second.phases[1] is second
    assert second.phases[2].SEQ_LEN == 32
    assert second.Task().model.stack.block.mixer.rotary_base == 1e5
    assert first.Task().model.stack.block.mixer.rotary_base == 1e4
    held_out = second.Test().inputs["validation"]
    assert (held_out.seq_len, held_out.batch_size, held_out.first_row) == (64, 4, 0)
    assert run.steps_of_phases == (4, 4, 2)
    built = check(run)
    assert built.train.input.borders == (4, 8)
    assert built.train.input.num_batches() == 10


@pytest.mark.parametrize(
    ("kind", "way"),
    [("linear", lambda x: x), ("cosine", lambda x: (1 - np.cos(np.pi * x)) / 2), ("sqrt", np.sqrt), ("constant", None)],
)
def test_learning_rates_of_phases(kind, way):
    """Warm-up, stable, decay; each phase with a schedule begins at the last value of the one before."""
    falls = Phase(steps=4, schedule=kind, **({} if kind == "constant" else {"end_factor": 0.2}))
    rises = Phase(steps=2, schedule="linear", end_factor=0.5)
    schedule = check(experiment(falls, rises)).task.optimizer.schedule
    fall = [1.0] * 4 if way is None else [1 + (0.2 - 1) * way(t / 4) for t in range(4)]
    last = 1.0 if way is None else 0.2
    wanted = [0.5, 1, 1, 1, *fall, last, (last + 0.5) / 2]
    assert np.asarray(schedule(np.arange(10))) == pytest.approx(wanted, abs=1e-6)
    assert float(schedule(10)) == pytest.approx(0.5), "the end is that of the last phase"


def test_a_phase_without_a_schedule_follows_that_of_the_run():
    plain = check(experiment(SCHEDULE="cosine")).task.optimizer.schedule
    assert check(experiment(Phase(steps=4, SEQ_LEN=64), SCHEDULE="cosine")).task.optimizer.schedule == plain
    default = check(experiment(Phase(steps=4, schedule="linear"))).task.optimizer.schedule
    assert default.segments[0].end_factor == 0.1, "END_FACTOR"


def rows_of(source, batches):
    """How often each row of a token source is read: (source, number of the row) by count."""
    found = collections.Counter()
    for phase, number in map(source.place, range(batches)):
        part = source.phases[phase]
        for row in range(number * part.batch_size, (number + 1) * part.batch_size):
            inner, place = (
                (part, row) if not hasattr(part, "place") else (part.sources[part.place(row)[0]], part.place(row)[1])
            )
            found[inner.source, inner.seq_len, inner.first_row + place] += 1
    return found


@pytest.mark.parametrize("batch_sizes", [(8, 4), (4, 8), (8, 8)])
def test_the_rows_of_a_run_are_those_of_a_run_without_phases(batch_sizes):
    """Rows of one length: the rows seen are 0 ... n - 1 of the source, whatever the borders and batch sizes are."""
    first, second = batch_sizes
    run = experiment(Phase(steps=3, BATCH_SIZE=second), Phase(steps=2), BATCH_SIZE=first)
    source = train_input(run)
    seen = rows_of(source, 10)
    total = 5 * first + 3 * second + 2 * first
    assert sorted(row for _, _, row in seen) == list(range(total))
    assert set(seen.values()) == {1}
    plain = train_input(experiment(BATCH_SIZE=1, NUM_STEPS=1).derive(PHASES=())())
    begins = 5 * first
    assert np.array_equal(source.batch(5).inputs[0], plain.row(begins).inputs), "the row after those of the first phase"


def test_rows_of_another_length_begin_after_the_positions_that_were_read():
    source = train_input(experiment(LONG, Phase(steps=3, SEQ_LEN=48, BATCH_SIZE=1)))
    read = 3 * 8 * 32
    assert source.phases[1].first_row == math.ceil(read / 64) == 12
    assert source.phases[2].first_row == math.ceil((read + 4 * 4 * 64) / 48) == 38


def test_each_source_of_a_mixture_continues():
    """Shares change at the border, the order of each source does not: rows seen are 0 ... n - 1 of each."""
    mixture = lambda a, b: (("text:", a), ("text:LICENSE", b))
    other = Phase(steps=6, MIXTURE=mixture(0.25, 0.75))
    run = experiment(other, DATA="mixture", MIXTURE=mixture(0.8, 0.2), NUM_STEPS=60)
    source = train_input(run)
    seen = collections.defaultdict(list)
    for data, _, row in rows_of(source, 60):
        seen[data].append(row)
    counts = [len(rows) for rows in seen.values()]
    assert all(sorted(rows) == list(range(len(rows))) for rows in seen.values())
    assert sum(counts) == 60 * 8
    assert len(counts) == 2
    assert [part.first_row for part in source.phases[1].sources] == [
        sum(source.phases[0].place(row)[0] == number for row in range(54 * 8)) for number in (0, 1)
    ]


def test_one_source_continues_in_a_mixture_and_new_data_begin_at_their_start():
    mixed = Phase(steps=4, DATA="mixture", MIXTURE=(("text:", 0.5), ("text:LICENSE", 0.5)))
    known, new = train_input(experiment(mixed)).phases[1].sources
    assert (known.first_row, new.first_row) == (6 * 8, 0)


def test_data_without_numbered_rows():
    synthetic = train_input(experiment(Phase(steps=4, BATCH_SIZE=4), DATA="synthetic", TIE_EMBEDDINGS=True))
    assert synthetic.phases[1].offset == 12, "the first batch after the 48 rows of the first phase"
    seqio = experiment(Phase(steps=4), DATA="seqio", SEQIO_TASK="none", VOCAB_SIZE=300).Train().input
    assert [phase.seed for phase in seqio.phases] == [0, 1], "another order, because rows cannot be skipped"


def test_rows_in_pieces_and_short_rows_first():
    chunks = train_input(experiment(Phase(steps=4), TBPTT_LEN=8))
    assert chunks.phases[1].source.first_row == math.ceil(6 / 4) * 8
    staged = experiment(LONG, LENGTH_STAGES=(8, 16), STAGED_STEPS=4)
    assert [phase.shapes() for phase in train_input(staged).phases] == [[(8, 8), (8, 16), (8, 32)], [(4, 64)]]
    with pytest.raises(UsageError, match="phase 0 must have at least 7 updates, those of its short rows"):
        check(experiment(LONG, LENGTH_STAGES=(8, 16), STAGED_STEPS=7))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "Phase(), Phase(steps=4, MODEL_DIM=64)",
            r"PHASES\[1\] changes params/embedding/embedding_vm \(got \(256, 64\)",
        ),
        ("Phase(), Phase(steps=4, OPTIMIZER='lion')", r"PHASES\[1\] changes optimizer/|PHASES\[1\] changes params/"),
        ("Phase(), Phase(steps=4, SEED=1)", r"PHASES\[1\] changes SEED \(got 1, in the first phase 0\)"),
        ("Phase(), Phase(steps=4, LOG_EVERY=3)", r"PHASES\[1\] changes log_every"),
        ("Phase(), Phase(steps=4, SCHEDULE='linear')", r"PHASES\[1\] changes the schedule"),
        (
            "Phase(), Phase(steps=4, MIXTURE=(('text:',1),))",
            r"PHASES\[1\]: MIXTURE .* has no effect with DATA = 'text'",
        ),
        ("Phase(), Phase(steps=4, SEQLEN=8)", r"PHASES\[1\]: .* sets SEQLEN, .* Did you mean 'SEQ_LEN'"),
        ("Phase(SEQ_LEN=8), Phase(steps=4)", r"^PHASES\[0\] sets SEQ_LEN, but the first phase has the knobs of"),
        ("Phase(steps=4), Phase(steps=4)", r"PHASES have 8 updates together \(got NUM_STEPS = 30\). Set NUM_STEPS=8"),
        ("Phase(), Phase(steps=30)", r"NUM_STEPS must be above 30, the updates of the other phases"),
        ("Phase(), Phase()", r"PHASES\[0\] and PHASES\[1\] have no steps"),
        ("Phase(), Phase(steps=4, schedule='sqr')", "Unknown schedule 'sqr' of a phase. Did you mean 'sqrt'"),
        ("Phase(), Phase(steps=4, end_factor=0)", r"end_factor = 0 needs a schedule"),
        ("Phase(), Phase(steps=4, schedule='linear', end_factor=-1)", "end_factor of a phase must be at least 0"),
        ("Phase(), Phase(steps=4, schedule='linear'), Phase(steps=2)", r"PHASES\[2\] has no schedule, but PHASES\[1\]"),
        ("Phase(), Phase(steps=0)", "steps of a phase must be an integer above 0"),
        ("Phase(), Phase(steps=4, seq_len=3)", "Phase has no field 'seq_len'. .*'SEQ_LEN'"),
        ("Phase(), Phase(steps=4, TBPTT_LEN=8)", r"PHASES\[1\] changes carry"),
        ("Phase(), Phase(steps=4, BATCH_SIZE=0)", r"PHASES\[1\]: .*BATCH_SIZE takes int above 0"),
    ],
)
def test_refusals(text, message):
    with pytest.raises(UsageError, match=message):
        check(override(StdlibTiny.Smoke(), [f"PHASES=({text})"])())


@pytest.mark.parametrize(
    ("override_text", "message"),
    [
        ("train.input.steps=6,4", r"train.input.steps must be \(26, 4\), as PHASES state \(got \(6, 4\)\)"),
        ("train.input.phase=1", "train.input.phase must be 0"),
        ("train.num_steps=8", "train.num_steps must be 30"),
        ("train.input.phases.0.batch_size=16", "train.input.phases.0.batch_size must be 8"),
    ],
)
def test_fields_that_others_follow_cannot_be_set_alone(override_text, message):
    with pytest.raises(UsageError, match=message):
        check(override(StdlibTiny.Smoke(), ["PHASES=(Phase(), Phase(steps=4))", override_text])())


def test_other_fields_can_be_set_in_all_phases():
    made = override(StdlibTiny.Smoke(), ["PHASES=(Phase(), Phase(steps=4))", "task.optimizer.beta1=0.8"])()
    assert [check(phase).task.optimizer.beta1 for phase in made.phases] == [0.8, 0.8]
    of_first = override(StdlibTiny.Smoke(), ["PHASES=(Phase(), Phase(steps=4))", "train.input.phases.1.seed=3"])()
    assert [source.seed for source in train_input(of_first).phases] == [0, 3]


def test_a_learning_rate_of_a_phase_is_in_its_record():
    rates = [phase["learning_rate"] for phase in snapshot(experiment(Phase(steps=4, LEARNING_RATE=0.5)))["phases"]]
    assert rates == [pytest.approx([3e-3 / 2, 3e-3]), [0.5, 0.5]]


def test_phases_as_text():
    phases = (Phase(), LONG)
    assert show(phases) == (
        "(Phase(), Phase(steps=4, schedule='sqrt', end_factor=0.0, SEQ_LEN=64, BATCH_SIZE=4, ROTARY_BASE=100000.0))"
    )
    assert parse(show(phases)) == phases
    assert parse("Phase(steps=other)") == "Phase(steps=other)", "no literal"
    assert phases == resolve("tiny.StdlibTiny", [f"PHASES={show(phases)}"]).PHASES


def test_a_smoke_test_has_short_phases():
    cls = StdlibTiny.derive(PHASES=(Phase(steps=1000), Phase(steps=200, schedule="linear", SEQ_LEN=512, DROPOUT=0.1)))
    small = cls.Smoke()
    assert (Phase(), Phase(steps=2, schedule="linear", SEQ_LEN=64, DROPOUT=0.1)) == small.PHASES
    check(small())
    fewer_rows = StdlibTiny.derive(PHASES=(Phase(), Phase(steps=9, BATCH_SIZE=2))).Smoke()
    assert fewer_rows.PHASES[1].knobs == (("BATCH_SIZE", 8),), "rows for as many devices as in the first phase"
    mixed = GptStdlib.derive(PHASES=(Phase(), Phase(steps=9, DATA="jsonl", DATA_PATH="a.jsonl")))
    assert shortened(mixed, mixed.Smoke()) == (Phase(), Phase(steps=2)), "no other data"


def test_records_and_differences_show_phases():
    run = snapshot(experiment(LONG))
    plain = snapshot(experiment().derive(PHASES=())())
    assert "phases" not in plain
    first, second = run["phases"]
    assert first["updates"] == [1, 6]
    assert first["knobs"] == {}
    assert first["config"] == {}
    assert (second["updates"], second["rows"], second["positions"]) == ([7, 10], 4, 64)
    assert second["learning_rate"] == pytest.approx([3e-3, 3e-3 * (1 - math.sqrt(3 / 4))])
    assert second["config"]["task.model.stack.block.mixer.rotary_base"] == "100000.0"
    changed = diff(run, snapshot(experiment(Phase(steps=4, SEQ_LEN=64))))
    assert [row["phase"] for row in changed["phases"]] == [1]
    assert changed["phases"][0]["a"].startswith("updates 7 to 10, 4 x 64, learning rate 0.003 to")
    assert [row["b"] for row in diff(run, plain)["phases"]] == [None, None]
