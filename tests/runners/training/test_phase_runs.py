"""Runs in phases: metrics, interruptions, branches, evaluation and samples with the programs of each phase."""

import contextlib
import json
import signal
import time

import numpy as np
import pytest
from jax.sharding import Mesh

from registry.resolve import resolve, resolve_recorded
from registry.runs.run import Run as RunFolder
from runners import convert
from runners import session as session_module
from runners.main import main
from runners.session import Session
from runners.training.checkpoint_parts.retention import loss_of
from runners.training.checkpoints import Checkpoints
from runners.training.profile import TraceWindow
from runners.training.workdir import recorded
from testing import launches
from tests.support.run_folders import lines
from vortaro.run import Run

LONG = "Phase(steps=4, schedule='sqrt', end_factor=0, SEQ_LEN=64, BATCH_SIZE=16, ROTARY_BASE=1e5)"
SETTINGS = ("NUM_STEPS=12", "SCHEDULE=constant", "LOG_EVERY=5", "EVAL_EVERY=100", "SAVE_EVERY=100", "DROPOUT=0.1")
FLAGS = ["--exp=tiny.StdlibTiny", "--smoke", "--no-tensorboard", *(f"--set={setting}" for setting in SETTINGS)]
STAGES = f"--set=PHASES=(Phase(), {LONG}, Phase(steps=2, schedule='constant'))"


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The folder of a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("phases") / "calm"
    assert main([*FLAGS, STAGES, f"--workdir={folder}"]) == 0
    return folder


def test_metrics_are_of_one_phase_each(calm):
    train = lines(calm, "train")
    assert [line["step"] for line in train] == [5, 6, 10, 12], "a line at every border"
    assert [line["sequence_length"] for line in train] == [32, 32, 64, 32]
    assert [line["tokens_seen"] for line in train] == [5 * 256, 6 * 256, 6 * 256 + 4096, 8 * 256 + 4096]
    rate = resolve("tiny.StdlibTiny", smoke=True).LEARNING_RATE
    assert [line["learning_rate"] for line in train[1:]] == pytest.approx([rate, rate * (1 - (3 / 4) ** 0.5), 0])
    assert [line["step"] for line in lines(calm, "validation")] == [6, 10, 12], "evaluated at the end of each phase"
    session = Session(resolve("tiny.StdlibTiny", [*SETTINGS, STAGES.removeprefix("--set=")], smoke=True))
    flops = [session.of_update(step).throughput.update_flops((batch, length)) for step, batch, length in
             ((1, 8, 32), (7, 16, 64), (11, 8, 32))]  # fmt: skip
    assert train[-1]["flops"] == 6 * flops[0] + 4 * flops[1] + 2 * flops[2]


def test_checkpoints_at_borders_are_kept(calm):
    assert launches.saved_steps(calm) == [6, 10, 12]


def test_a_checkpoint_is_used_with_the_model_of_its_phase(calm, capsys):
    validation = {line["step"]: line["loss"] for line in lines(calm, "validation")}
    for step, length, base in ((6, 32, 1e4), (10, 64, 1e5)):
        run = Run(str(calm), str(step))
        assert run._session.train.input.seq_len == length
        assert run._session.task.model.stack.block.mixer.rotary_base == base
        assert main([*FLAGS, STAGES, f"--workdir={calm}", "--mode=validation", f"--checkpoint={step}"]) == 0
        assert f"step {step} validation: loss {validation[step]:.4f}" in capsys.readouterr().out
    assert main([f"--workdir={calm}", "--mode=sample", "--max_new_tokens=3", "--checkpoint=10", "--window=8"]) == 0


def test_weights_of_every_phase_are_exported(calm, tmp_path):
    for step in (6, 10):
        to = [f"--workdir={calm}", f"--checkpoint={step}", "--format=vortaro", f"--to={tmp_path}/{step}.safetensors"]
        assert convert.main(["export", *to]) == 0
        assert (tmp_path / f"{step}.safetensors").exists()


def test_the_record_and_the_report_show_phases(calm):
    record = recorded(str(calm))
    assert [phase["updates"] for phase in record["phases"]] == [[1, 6], [7, 10], [11, 12]]
    assert "<h2>Phases</h2>" in (calm / "report.html").read_text()
    assert "7 to 10" in (calm / "experiment.txt").read_text()
    assert len(resolve_recorded(record).phases) == 3


def test_the_best_checkpoint_is_of_the_last_phase(calm):
    losses = {line["step"]: line["loss"] for line in lines(calm, "validation")}
    assert [line["phase"] for line in lines(calm, "validation")] == [0, 1, 2]
    checkpoints = Checkpoints(calm, read_only=True)
    assert checkpoints.find("best") == 12
    assert RunFolder(calm).summary.best["step"] == 12
    assert loss_of({"loss": 9.0, "phase": 2}) < loss_of({"loss": losses[10], "phase": 1}) < loss_of({"loss": losses[6]})


@pytest.mark.parametrize(
    ("length", "is_accepted"), [("NUM_STEPS=20", False), ("NUM_STEPS=12", True), ("WEIGHT_METRICS=true", True)]
)
def test_another_length_moves_no_border_that_is_past(calm, length, is_accepted, capsys):
    """The run has left its first phase, which has the rest of NUM_STEPS."""
    assert main([*FLAGS, STAGES, f"--set={length}", f"--workdir={calm}"]) == (0 if is_accepted else 2)
    assert ("train.input.steps" in capsys.readouterr().out) != is_accepted


@pytest.mark.slow
def test_another_length_before_the_first_border(tmp_path):
    assert main([*FLAGS, STAGES, "--until=3", f"--workdir={tmp_path}"]) == 0
    assert launches.saved_steps(tmp_path) == [3]
    assert [line["step"] for line in lines(tmp_path, "validation")] == [3]
    assert main([*FLAGS, STAGES, "--set=NUM_STEPS=10", f"--workdir={tmp_path}"]) == 0
    assert launches.saved_steps(tmp_path) == [4, 8, 10]


def test_phases_have_the_mesh_of_the_run(monkeypatch):
    """A permutation of the devices, which is not its own inverse, is applied to those of the command once."""
    order, make_mesh = [1, 2, 3, 0, 5, 6, 7, 4], session_module.make_mesh

    def permuted(shape, how, devices, across=None):
        mesh = make_mesh(shape, how, devices, across)
        places = np.array([devices[index] for index in order]).reshape(mesh.devices.shape)
        return Mesh(places, mesh.axis_names, axis_types=mesh.axis_types)

    monkeypatch.setattr(session_module, "make_mesh", permuted)
    session = Session(resolve("tiny.StdlibTiny", [*SETTINGS, STAGES.removeprefix("--set=")], smoke=True))
    devices = [list(phase.mesh.devices.flat) for phase in session.phases]
    assert devices == [[session._devices[i] for i in order]] * 3


class Killed(BaseException):
    """The end of a process without notice."""


@pytest.mark.slow
def test_stopped_and_killed_in_every_phase_and_at_every_border_it_ends_in_the_same_bits(
    calm, tmp_path, monkeypatch, capsys
):
    """Of each pair (step, step that the next start resumes at), the run is killed if the two differ."""
    ends, end_at, is_killed = (
        [(3, 3), (6, 3), (6, 6), (7, 6), (8, 8), (10, 8), (10, 10), (11, 10), (11, 11)],
        [0],
        [False],
    )
    before = TraceWindow.before

    def ending(self, step, state):
        if step == end_at[0] and is_killed[0]:
            raise Killed
        if step == end_at[0]:
            signal.raise_signal(signal.SIGTERM)
        before(self, step, state)

    monkeypatch.setattr(TraceWindow, "before", ending)
    began = time.time()
    for end_at[0], resumes_at in ends:
        is_killed[0] = end_at[0] != resumes_at
        with pytest.raises(Killed) if is_killed[0] else contextlib.nullcontext():
            assert main([*FLAGS, STAGES, f"--workdir={tmp_path}"]) == 0
        assert launches.saved_steps(tmp_path)[-1] == resumes_at
    end_at[0] = 0
    capsys.readouterr()
    assert main([*FLAGS, STAGES, f"--workdir={tmp_path}"]) == 0
    assert "Done: 12 steps (resumed at step 11)" in capsys.readouterr().out
    assert launches.differences(calm, tmp_path) == []
    spent = RunFolder(tmp_path).goodput
    assert spent.wall == pytest.approx(time.time() - began, rel=0.01), "all seconds of ten starts are counted"
    assert min(spent.useful, spent.overhead) > 0


@pytest.mark.slow
def test_the_plan_has_every_phase_with_another_update(tmp_path, capsys):
    """The third phase has the update of the first."""
    mesh = ["--set=DEVICE_MESH_SHAPE=8,1", "--chip=v3", "--host_devices=8"]
    assert main([*FLAGS, STAGES, "--mode=plan", *mesh, f"--workdir={tmp_path}"]) == 0
    out = capsys.readouterr().out
    assert "phase 0" in out
    assert "phase 1" in out
    assert "phase 2" not in out
    tokens = [
        json.loads((tmp_path / file).read_text())["tokens_per_step"] for file in ("plan.json", "phase-1/plan.json")
    ]
    assert tokens == [256, 1024]


@pytest.mark.slow
def test_branches_of_a_stable_checkpoint_equal_complete_runs(tmp_path, capsys):
    """Two ends of one stable run: decays from step 6 and from step 8, with the bits of runs that decay there."""
    flags = [*FLAGS, "--set=KEEP_EVERY=2"]
    assert main([*flags, "--set=NUM_STEPS=9", f"--workdir={tmp_path}/stable"]) == 0
    assert launches.saved_steps(tmp_path / "stable") == [2, 4, 6, 8, 9]
    for step in (6, 8):
        ends = [f"--set=NUM_STEPS={step + 4}", f"--set=PHASES=(Phase(), {LONG})"]
        assert main([*flags, *ends, f"--workdir={tmp_path}/complete-{step}"]) == 0
        branch = [f"--branch={tmp_path}/stable@{step}", f"--workdir={tmp_path}/branch-{step}"]
        capsys.readouterr()
        assert main([*flags, *ends, *branch]) == 0
        assert f"Continued from {tmp_path}/stable (step {step})" in capsys.readouterr().out
        assert launches.saved_steps(tmp_path / f"branch-{step}")[0] == step, "it resumes without the other run"
        complete, branched = (tmp_path / f"{kind}-{step}" for kind in ("complete", "branch"))
        a, b = launches.last_state(complete), launches.last_state(branched)
        assert a.keys() == b.keys()
        assert [name for name in a if not np.array_equal(a[name], b[name])] == []
        after = lambda folder, step=step: [line for line in launches.metrics(folder) if line["step"] > step]
        assert after(complete) == after(branched)
        assert recorded(str(branched))["parent"]["branch"] is True
        assert main([*flags, *ends, *branch]) == 0, "a run that has a checkpoint resumes"
        assert "already finished" in capsys.readouterr().out
