"""Runs with short rows first: one compiled update per length, interrupted and resumed in every stage."""

import signal

import numpy as np
import pytest

from layers.errors import UsageError
from registry.checks import check
from registry.resolve import resolve
from runners import throughput
from runners.compiled_functions import CompiledFunctions
from runners.host_batches import HostBatches
from runners.machine.chips import CHIPS
from runners.main import main
from runners.session import Session
from runners.training.profile import TraceWindow
from runners.widths.sweep import _Runs
from testing import launches
from tests.support.references.models import Small
from tests.support.run_folders import lines

SETTINGS = ("LENGTH_STAGES=8,16", "STAGED_STEPS=12", "NUM_STEPS=18", "LOG_EVERY=5", "EVAL_EVERY=9", "SAVE_EVERY=100")
FLAGS = ["--exp=tiny.StdlibTiny", "--smoke", "--no-tensorboard", "--set=DROPOUT=0.1"]
FLAGS += [f"--set={setting}" for setting in SETTINGS]


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The folder of a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("staged") / "calm"
    assert main([*FLAGS, f"--workdir={folder}"]) == 0
    return folder


def test_metrics_follow_the_rows_that_were_read(calm):
    train = lines(calm, "train")
    assert [(line["step"], line["sequence_length"]) for line in train] == [(5, 8), (10, 16), (15, 32), (18, 32)]
    tokens = np.cumsum([0] + [8 * 8] * 6 + [8 * 16] * 6 + [8 * 32] * 6)
    assert [line["tokens_seen"] for line in train] == [tokens[step] for step in (5, 10, 15, 18)]
    per_step = [line["tokens_per_second"] / line["steps_per_second"] for line in train]
    assert per_step == pytest.approx(np.diff(tokens[[0, 5, 10, 15, 18]]) / [5, 5, 5, 3])
    plain = resolve("tiny.StdlibTiny", ["NUM_STEPS=18"], smoke=True).Task().optimizer.schedule
    staged = resolve("tiny.StdlibTiny", SETTINGS, smoke=True).Task().optimizer.schedule
    assert plain == staged, "the learning rate counts updates"
    assert "sequence_length" not in lines(calm, "validation")[0]


@pytest.mark.slow
def test_stopped_in_every_stage_it_ends_in_the_same_bits(calm, tmp_path, monkeypatch, capsys):
    """Within stages, at the last update of one, and after all."""
    stops, stop_at, compiled = [3, 6, 9, 12, 15], [0], []
    before, compile_step = TraceWindow.before, CompiledFunctions.compile_step

    def stopping(self, step, state):
        if step == stop_at[0]:
            signal.raise_signal(signal.SIGTERM)
        before(self, step, state)

    def counting(self, batch, **options):
        compiled.append(batch.inputs.shape[1])
        return compile_step(self, batch, **options)

    monkeypatch.setattr(TraceWindow, "before", stopping)
    monkeypatch.setattr(CompiledFunctions, "compile_step", counting)
    for stop_at[0] in stops:
        assert main([*FLAGS, f"--workdir={tmp_path}"]) == 0
        assert f"SIGTERM: saved step {stop_at[0]}" in capsys.readouterr().out
    assert main([*FLAGS, f"--workdir={tmp_path}"]) == 0
    assert "Resumed at step 15" in capsys.readouterr().out
    assert compiled == [8, 8, 16, 16, 32, 32], "one update for each length that a start meets"
    assert launches.metrics(tmp_path) == launches.metrics(calm)
    a, b = launches.last_state(tmp_path), launches.last_state(calm)
    assert [name for name in a if not np.array_equal(a[name], b[name])] == []


def test_reshaped_rows_keep_the_tokens_of_an_update(tmp_path, capsys):
    assert main([*FLAGS, "--set=STAGED_ROWS=reshape", "--set=EVAL_EVERY=none", f"--workdir={tmp_path}"]) == 0
    out = capsys.readouterr().out
    stages = [line.partition(" (")[0] for line in out.splitlines() if line.startswith("Rows of")]
    assert stages == [f"Rows of {size} positions from step {step}" for size, step in ((8, 1), (16, 7), (32, 13))]
    assert [line["tokens_seen"] for line in lines(tmp_path, "train")] == [8 * 32 * step for step in (5, 10, 15, 18)]


def test_a_sweep_takes_the_same_rows(calm):
    runs = _Runs(resolve("tiny.StdlibTiny", ["DROPOUT=0.1", *SETTINGS], smoke=True))
    found = runs.run(3e-3, seed=0)
    assert found["loss"] == pytest.approx(lines(calm, "validation")[-1]["loss"], rel=1e-5)
    assert [step for step, _ in found["train"]] == [5, 10, 15, 18]


def test_profiling_uses_complete_rows(tmp_path, monkeypatch):
    shapes, put = [], HostBatches.put
    monkeypatch.setattr(
        HostBatches, "put", lambda self, batch, rows: shapes.append(batch.inputs.shape) or put(self, batch, rows)
    )
    assert main([*FLAGS, "--mode=profile", "--profile_steps=1", f"--workdir={tmp_path}"]) == 0
    assert {length for _, length in shapes} == {32}


def test_work_is_counted_at_the_length_it_was_done_at(monkeypatch):
    monkeypatch.setattr(throughput, "chip_of", lambda device: CHIPS["v4"])
    whole, short = Session(Small()), Session(Small.derive(LENGTH_STAGES=(4,), STAGED_STEPS=4)())
    assert short.abstract.batch.inputs.shape == whole.abstract.batch.inputs.shape == (8, 16)
    assert short.throughput.flops_per_token == whole.throughput.flops_per_token
    assert short.throughput.update_flops((8, 4)) == Session(Small.derive(SEQ_LEN=4)()).throughput.update_flops((8, 4))
    assert short.throughput.update_flops((8, 4)) < short.throughput.update_flops((8, 16)) / 4, (
        "attention's share falls with the length"
    )
    work = 2 * short.throughput.update_flops((8, 4)) + 3 * short.throughput.update_flops((8, 16))
    peak = CHIPS["v4"].flops * short.mesh.size
    assert short.throughput.mfu({(8, 4): 2, (8, 16): 3}, 0.5) == pytest.approx(work / 0.5 / peak)


def test_every_shape_is_held_against_the_mesh():
    along = resolve("tiny.StdlibTiny", ["ACTIVATIONS.tokens_bs=P(None,'data')", *SETTINGS], smoke=True)
    check(along, {"data": 8, "model": 1})
    with pytest.raises(UsageError, match=r"Dimension 8 of train.input: a batch of 8 rows, shape"):
        check(along, {"data": 16, "model": 1})
    with pytest.raises(UsageError, match="must be divisible by"):
        check(Small.derive(LENGTH_STAGES=(4,), STAGED_STEPS=4, GRADIENT_ACCUMULATION=3)())
    with pytest.raises(UsageError, match="loss_chunk must divide the sequence length 12"):
        check(Small.derive(LENGTH_STAGES=(12,), STAGED_STEPS=4, LOSS_CHUNK=8)())
