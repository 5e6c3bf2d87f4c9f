"""Complete runs: trained, resumed, interrupted, damaged, sampled from."""

import fcntl
import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from registry.runs.run import Run
from runners.training.metrics_log import MetricsLog
from runners.training.profile import TraceWindow
from testing import launches
from tests.conftest import ROOT, xla_flags
from tests.support.plugins import commands
from tests.support.run_folders import lines

SETTINGS = ("NUM_STEPS=30", "SAVE_EVERY=10", "EVAL_EVERY=10", "LOG_EVERY=7", "WARMUP_STEPS=2", "DROPOUT=0.1")
FLAGS = ["--smoke", "--no-tensorboard", *(f"--set={setting}" for setting in SETTINGS)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run folder of an undisturbed run, and what it printed."""
    workdir = tmp_path_factory.mktemp("runs") / "calm"
    done = commands.inside(workdir.parent, "runners.main", "--exp=tiny.StdlibTiny", f"--workdir={workdir}", *FLAGS)
    assert done.returncode == 0, done.stderr
    return workdir, done.stdout


@pytest.fixture
def copy(finished, tmp_path):
    """A copy of that folder to do things to."""
    return shutil.copytree(finished[0], tmp_path / "copy")


def test_what_a_run_leaves(finished):
    workdir, out = finished
    names = {path.name for path in workdir.iterdir()}
    assert names - {".lock"} == {
        "experiment.json",
        "experiment.txt",
        "weights.txt",
        "metrics.jsonl",
        "times.jsonl",
        "checkpoints",
        "report.html",
        "assets",
    }
    assert "Done: 30 steps" in out
    assert str(workdir / "report.html") in out
    assert sorted(int(path.name) for path in (workdir / "checkpoints").iterdir()) == [20, 30]
    record = json.loads((workdir / "experiment.json").read_text())
    assert record["experiment"] == "tiny.StdlibTiny"
    assert record["smoke"]
    assert record["knobs"]["DROPOUT"] == {"value": "0.1", "owner": "--set"}
    assert record["versions"]["jax"]
    assert "ffn_in_mf" in (workdir / "weights.txt").read_text()
    page = (workdir / "report.html").read_text()
    assert 'data-metric="loss"' in page
    assert (workdir / "assets" / "plotly.min.js").stat().st_size > 1_000_000
    assert "ffn_in_mf" in page


def test_metrics(finished):
    train = [line for line in lines(finished[0]) if line["split"] == "train"]
    assert [line["step"] for line in train] == [7, 14, 21, 28, 30]
    assert [line["tokens_seen"] for line in train] == [step * 8 * 32 for step in (7, 14, 21, 28, 30)]
    for line in train:
        assert line["perplexity"] == pytest.approx(np.exp(line["loss"]))
        assert line["bits_per_byte"] == pytest.approx(line["loss"] / np.log(2))
        names = (
            "objective bits_per_token accuracy grad_norm param_norm learning_rate tokens_per_second steps_per_second"
        )
        assert set(names.split()) <= set(line)
        assert "mfu" not in line, "a CPU's peak is not known"
        assert line["flops"] * 30 == train[-1]["flops"] * line["step"], "of full rows"
    validation = [line for line in lines(finished[0]) if line["split"] == "validation"]
    assert [line["step"] for line in validation] == [10, 20, 30]
    assert validation[-1]["loss"] < validation[0]["loss"]


def test_the_printed_command_repeats_the_run(copy, inside):
    assert Run(copy).state == "finished"
    printed = inside("registry", "rerun", str(copy), "--json")
    assert printed.returncode == 0, printed.stdout
    found = json.loads(printed.stdout)
    assert found["missing"] == []
    (command,) = found["commands"]
    program, _, flags = command.partition(" --")
    assert program == "python -m runners.main"
    assert inside("runners.main", *shlex.split(f"--{flags}")).returncode == 0
    again = copy.with_name(f"{copy.name}-again")
    assert launches.metrics(again) == launches.metrics(copy)
    compared = inside("registry", "compare", str(copy), str(again))
    assert compared.returncode == 0
    assert "No difference." in compared.stdout


def test_rerun_reports_other_code_and_data(copy, inside, monkeypatch):
    record = json.loads((copy / "experiment.json").read_text())
    record["starts"][-1]["data"]["train.input"]["fingerprint"] = "0" * 16
    record["starts"][-1]["code"]["vortaro"]["digest"] = "1" * 12
    record["starts"][-1]["versions"]["flax"] = "0.1"
    (copy / "experiment.json").write_text(json.dumps(record))
    printed = inside("registry", "rerun", str(copy))
    assert printed.returncode == 1
    for text in (
        "The data of train.input are other ones now",
        "The code of vortaro is another one now",
        "flax 0.1 (now",
    ):
        assert text in printed.stdout


def test_a_finished_run_has_nothing_left_to_do(copy, inside):
    before = launches.metrics(copy)
    done = inside("runners.main", "--exp=tiny.StdlibTiny", f"--workdir={copy}", *FLAGS)
    assert done.returncode == 0, done.stderr
    assert "Resumed at step 30" in done.stdout
    assert "Training had already finished: the last checkpoint is of step 30, and NUM_STEPS = 30. " in done.stdout
    assert "To train further, add --set=NUM_STEPS=60. Report: " in done.stdout
    assert "Done: " not in done.stdout
    assert launches.metrics(copy) == before


SIGNALS = [(signal.SIGTERM, 0), (signal.SIGINT, 130)]
ENDLESS = (*SETTINGS[1:], "NUM_STEPS=100000", "SAVE_EVERY=100000", "EVAL_EVERY=none")


def saved_at(workdir, out, number):
    """The step that a run printed as saved when it was stopped, whose checkpoint exists."""
    assert f"{signal.Signals(number).name}: saved step" in out
    step = int(out.rpartition("saved step ")[2].split()[0])
    assert (workdir / "checkpoints" / str(step)).is_dir()
    return step


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_signal_saves_and_the_next_start_resumes(inside, tmp_path, monkeypatch, number, code):
    flags = ["--exp=tiny.StdlibTiny", "--smoke", "--no-tensorboard", "--workdir=run"]
    flags += [f"--set={setting}" for setting in ENDLESS]
    write = MetricsLog.write

    def write_and_signal(*given):
        write(*given)
        os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        patch.setattr(MetricsLog, "write", write_and_signal)
        first = inside("runners.main", *flags)
        assert first.returncode == code, first.stderr
        step = saved_at(tmp_path / "run", first.stdout, number)
        assert Run(tmp_path / "run").state == "stopped"
        again = inside("runners.main", *flags)
    assert again.returncode == code, again.stderr
    assert f"Resumed at step {step}" in again.stdout
    assert saved_at(tmp_path / "run", again.stdout, number) > step
    train = [line for line in lines(tmp_path / "run") if line["split"] == "train"]
    assert len(train) > 1
    assert len({line["flops"] / line["step"] for line in train}) == 1, "those before the stop are counted"


def test_a_run_stopped_in_its_last_update_is_evaluated_by_the_next_start(finished, inside, tmp_path, monkeypatch):
    flags = ["--exp=tiny.StdlibTiny", "--workdir=run", *FLAGS, "--set=EVAL_EVERY=none"]
    before = TraceWindow.before

    def stopped_at_the_end(self, step, state):
        if step == 30:
            signal.raise_signal(signal.SIGTERM)
        before(self, step, state)

    with monkeypatch.context() as patch:
        patch.setattr(TraceWindow, "before", stopped_at_the_end)
        assert saved_at(tmp_path / "run", inside("runners.main", *flags).stdout, signal.SIGTERM) == 30
    assert Run(tmp_path / "run").state == "stopped"
    assert {line["split"] for line in lines(tmp_path / "run")} == {"train"}
    for _ in range(2):
        assert inside("runners.main", *flags).returncode == 0
        assert Run(tmp_path / "run").state == "finished"
        (found,) = [line for line in lines(tmp_path / "run") if line["split"] == "validation"]
        assert found == lines(finished[0])[-1]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_process_with_a_signal_to_stop_saves_first(tmp_path, number, code):
    workdir = tmp_path / "run"
    process = subprocess.Popen(
        launches.command(workdir, ENDLESS),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "XLA_FLAGS": xla_flags(1), "PYTHONPATH": str(ROOT)},
    )
    deadline = time.monotonic() + 600
    while not (workdir / "metrics.jsonl").exists() or not lines_so_far(workdir):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    out, _ = process.communicate(timeout=600)
    assert process.returncode == code, out
    saved_at(workdir, out, number)


def lines_so_far(workdir):
    return (workdir / "metrics.jsonl").read_text().count("\n")


def test_all_checkpoints_damaged(copy, inside):
    for step in ("20", "30"):
        shutil.rmtree(copy / "checkpoints" / step / "state")
    done = inside("runners.main", f"--workdir={copy}", "--mode=sample")
    assert done.returncode == 2
    assert "Checkpoint 30 is damaged" in done.stdout
    assert "None of the checkpoints [20, 30]" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_that_blows_up_stops_and_keeps_the_last_good_checkpoint(inside, tmp_path):
    bad = ["--set=LEARNING_RATE=1e38", "--set=CLIP_NORM=none", "--set=WEIGHT_DECAY=0", "--set=OPTIMIZER=sgd"]
    done = inside("runners.main", "--exp=tiny.StdlibTiny", "--workdir=run", *FLAGS, *bad)
    assert done.returncode == 1
    assert "vortaro: The norm of the new weights of step 1 overflows float32, although all elements are" in done.stderr
    assert "The run stops without saving it; no earlier checkpoint exists in" in done.stderr
    assert "Traceback" not in done.stderr
    assert not any((tmp_path / "run" / "checkpoints").iterdir())


def test_skipping_bad_updates_continues(inside, tmp_path):
    bad = ["--set=LEARNING_RATE=1e38", "--set=CLIP_NORM=none", "--set=WEIGHT_DECAY=0", "--set=OPTIMIZER=sgd"]
    skip = "--set=task.non_finite=skip"
    done = inside("runners.main", "--exp=tiny.StdlibTiny", "--workdir=run", *FLAGS, *bad, skip)
    assert done.returncode == 0, done.stderr
    assert lines(tmp_path / "run")[-2]["skipped_updates"] > 20
    assert np.isfinite(lines(tmp_path / "run")[-1]["loss"]), "the weights stayed good"


def test_sampling_from_the_command_line(copy, inside):
    flags = (f"--workdir={copy}", "--mode=sample", "--prompt=def ", "--max_new_tokens=20", "--no-stop")
    first, second = (inside("runners.main", *flags) for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("def ")
    assert first.stdout.rpartition("[")[0] == second.stdout.rpartition("[")[0]
    assert "[20 tokens in " in first.stdout
    other = inside("runners.main", *flags, "--sample_seed=1")
    assert other.stdout.rpartition("[")[0] != first.stdout.rpartition("[")[0]
    two = inside("runners.main", *flags, "--prompt=import os", "--num_samples=2", "--checkpoint=best")
    assert "--- sample 4" in two.stdout
    assert sorted(path.name for path in (copy / "samples").iterdir()) == ["00000030-seed0.txt", "00000030-seed1.txt"]
    assert "Latest sample" in (copy / "report.html").read_text()
    missing = inside("runners.main", *flags, "--checkpoint=7")
    assert missing.returncode == 2
    assert "Unknown checkpoint '7'. Choose last, best or one of 20, 30." in missing.stderr


def test_checkpoints_of_another_size_are_refused_and_kept(copy, inside):
    """They are complete: moving them aside as damaged would lose the run."""
    before = (copy / "metrics.jsonl").read_bytes()
    flags = (f"--workdir={copy}", *FLAGS, "--set=NUM_LAYERS=3", "--allow_changes")
    done = inside("runners.main", "--exp=tiny.StdlibTiny", *flags)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Checkpoint 30 in" in done.stderr
    assert "does not fit the experiment" in done.stderr
    assert not (copy / "damaged_checkpoints").exists()
    assert (copy / "metrics.jsonl").read_bytes() == before


def test_a_longer_run_resumes_from_the_end(copy, inside):
    done = inside("runners.main", f"--workdir={copy}", "--no-tensorboard", "--set=train.num_steps=42")
    assert done.returncode == 0, done.stderr
    train = [line for line in lines(copy) if line["split"] == "train"]
    assert [line["step"] for line in train][-2:] == [35, 42]
    assert train[-1]["tokens_seen"] == 42 * 8 * 32
    assert [line["step"] for line in lines(copy) if line["split"] == "validation"][-1] == 42


def test_one_process_at_a_time(copy, inside):
    with (copy / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = inside("runners.main", "--exp=tiny.StdlibTiny", f"--workdir={copy}", *FLAGS)
    assert done.returncode == 2
    assert "Another process trains in" in done.stderr


def test_judging_a_split(copy, inside):
    done = inside("runners.main", f"--workdir={copy}", "--mode=validation")
    assert done.returncode == 0, done.stderr
    stored = [line for line in lines(copy) if line["split"] == "validation"]
    assert f"loss {stored[-1]['loss']:.4f}" in done.stdout
    assert len(stored) == 3, "that step's line was there"


def test_profiling(inside, tmp_path):
    done = inside(
        "runners.main", "--exp=tiny.StdlibTiny", "--workdir=run", "--mode=profile", "--profile_steps=2", *FLAGS
    )
    assert done.returncode == 0, done.stderr
    assert "FLOP/s in matrix products" in done.stdout
    assert list((tmp_path / "run" / "profile").rglob("perfetto_trace.json.gz"))


def test_a_window_of_a_run_is_traced(inside, tmp_path):
    window = ["--profile_at=5", "--profile_steps=2"]
    done = inside("runners.main", "--exp=tiny.StdlibTiny", "--workdir=run", *window, *FLAGS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Trace: run/profile") == 1
    assert len(list((tmp_path / "run" / "profile").rglob("perfetto_trace.json.gz"))) == 1
    again = inside("runners.main", "--workdir=run", *window)  # as after a stop: the window is over
    assert again.returncode == 0, again.stderr
    assert "Trace:" not in again.stdout
    beyond = inside("runners.main", "--workdir=run", "--profile_at=31")
    assert beyond.returncode == 2
    assert "--profile_at must be 1 to 30 (got 31)" in beyond.stderr


def test_a_mesh_of_eight_gives_the_losses_of_one(finished, inside, tmp_path):
    flags = ("--host_devices=8", "--set=DEVICE_MESH_SHAPE=2,4")
    done = inside("runners.main", "--exp=tiny.StdlibTiny", "--workdir=run", *FLAGS, *flags)
    assert done.returncode == 0, done.stderr
    assert "data=2 model=4" in done.stdout
    ours, theirs = ([line["loss"] for line in lines(folder)] for folder in (tmp_path / "run", finished[0]))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)


def test_a_run_resumes_on_another_mesh(copy, inside):
    shutil.rmtree(copy / "checkpoints" / "30")
    mesh = "--set=DEVICE_MESH_SHAPE=2,4"
    done = inside("runners.main", "--exp=tiny.StdlibTiny", f"--workdir={copy}", *FLAGS, "--host_devices=8", mesh)
    assert done.returncode == 0, done.stderr
    assert "Resumed at step 20" in done.stdout
    assert lines(copy)[-1]["step"] == 30


def test_tensorboard_events(command, tmp_path):
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("needs TensorFlow: pip install -e '.[tensorboard]'")
    flags = [flag for flag in FLAGS if flag != "--no-tensorboard"]
    done = command("runners.main", "--exp=tiny.StdlibTiny", "--workdir=run", *flags, "--set=NUM_STEPS=10")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "the libraries keep quiet"
    folders = {path.name for path in (tmp_path / "run" / "tensorboard").iterdir()}
    assert {"train", "validation"} <= folders


def test_without_its_packages_a_run_writes_no_tensorboard_events(inside, tmp_path, monkeypatch):
    for name in ("tensorflow", "clu", "tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    flags = ["--exp=tiny.StdlibTiny", "--smoke", "--set=NUM_STEPS=3"]
    done = inside("runners.main", *flags, "--workdir=run")
    assert done.returncode == 0, done.stderr
    assert "Done: 3 steps" in done.stdout
    assert not (tmp_path / "run" / "tensorboard").exists()
    refused = inside("runners.main", *flags, "--workdir=other", "--tensorboard")
    assert refused.returncode == 2
    needs = "--tensorboard needs the package clu (and tensorflow). Run pip install"
    assert refused.stderr == f"vortaro: {needs} -c constraints.txt -e '.[tensorboard]'.\n"


def test_a_line_is_the_mean_since_the_line_before_when_their_cadence_changes(inside, tmp_path):
    """A checkpoint keeps nothing of a window of metrics that was reported."""
    flags = ["--exp=tiny.StdlibTiny", *FLAGS, "--set=NUM_STEPS=6", "--set=EVAL_EVERY=6", "--set=SAVE_EVERY=4"]
    for workdir, cadence in (("each", 1), ("run", 4)):
        done = inside("runners.main", *flags, f"--workdir={workdir}", f"--set=LOG_EVERY={cadence}")
        assert done.returncode == 0, done.stderr
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "6")
    done = inside("runners.main", "--workdir=run", "--no-tensorboard", "--set=LOG_EVERY=3")
    assert "Resumed at step 4" in done.stdout, done.stderr
    each, run = (
        {line["step"]: line for line in lines(tmp_path / name) if line["split"] == "train"} for name in ("each", "run")
    )
    assert list(run) == [4, 6]
    for name in ("loss", "grad_norm"):
        assert run[6][name] == pytest.approx((each[5][name] + each[6][name]) / 2, rel=1e-5)
    assert run[6]["tokens_seen"] == each[6]["tokens_seen"]


def test_synthetic_data_needs_no_text(inside):
    done = inside(
        "runners.main", "--exp=tiny.StdlibTiny", "--workdir=run", *FLAGS, "--set=DATA=synthetic", "--set=NUM_STEPS=3"
    )
    assert done.returncode == 0, done.stderr
    assert "bits/byte" not in done.stdout
