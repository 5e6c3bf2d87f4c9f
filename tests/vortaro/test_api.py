"""The Python API, and the command `vortaro`."""

import json
import subprocess
import sys

import numpy as np
import pytest

import vortaro
from tests.conftest import ROOT
from tests.support.golden_runs import STEPS, STOPPED_AT, unpack
from vortaro import command_line


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden")
    unpack("tiny", folder)
    return vortaro.load(str(folder / "run"))


def test_an_experiment_is_three_tables():
    view = vortaro.get("tiny.StdlibTiny", MODEL_DIM=256, NORM="layer", DEVICE_MESH_SHAPE=(2, 4))
    rows = {row["path"]: row for row in view.weights}
    assert rows["params/embedding/embedding_vm"]["shape"] == [256, 256]
    norm = next(row for row in view.knobs if row["knob"] == "NORM")
    assert norm == {"knob": "NORM", "value": "'layer'", "meaning": "kind of normalization", "set by": "--set"}
    assert {row["path"]: row["value"] for row in view.config}["task.model.final_norm"] == "layers.norm.LayerNorm"
    assert "on data=2 model=4" in repr(view)
    assert "embedding_vm" in view._repr_html_()
    assert "embedding_vm" in repr(view.weights)
    vortaro.check(view)
    with pytest.raises(vortaro.UsageError, match="'MODEL_DIN'"):
        vortaro.get("tiny.StdlibTiny", MODEL_DIN=256)
    with pytest.raises(vortaro.UsageError, match="do not divide"):
        vortaro.check(vortaro.get("tiny.StdlibTiny", DEVICE_MESH_SHAPE=(1, 3)))


def test_entries_are_those_of_the_registry():
    assert "tiny.StdlibTiny" in {row["name"] for row in vortaro.entries()}


def test_a_difference_is_true_where_there_is_one(run):
    difference = vortaro.diff("tiny.StdlibTiny", vortaro.get("tiny.StdlibTiny", NUM_LAYERS=2))
    assert difference
    assert [row["knob"] for row in difference["knobs"]] == ["NUM_LAYERS"]
    assert "NUM_LAYERS" in repr(difference)
    assert "NUM_LAYERS</td>" in difference._repr_html_()
    assert not vortaro.diff("tiny.StdlibTiny", "tiny.StdlibTiny")
    assert not vortaro.diff(run.folder, run.folder)


def test_a_run_has_metrics_logits_and_samples(run):
    assert [row["step"] for row in run.metrics if row["split"] == "train"] == list(range(1, STEPS + 1))
    assert all(row["loss"] > 0 for row in run.metrics)
    assert run.step == STOPPED_AT
    ids = np.arange(12).reshape(2, 6)
    logits = run.logits(ids)
    assert logits.shape == (2, 6, 256)
    assert logits.dtype == np.float32
    np.testing.assert_allclose(run.logits(ids[1]), logits[1], atol=1e-5)
    np.testing.assert_allclose(run.logits(ids[:, :3]), logits[:, :3], atol=1e-5)  # causal
    assert run.generate("def ", 4, temperature=0.0).startswith("def ")
    first = int(run.logits(list(b"def "))[-1].argmax())
    likeliest = bytes([first] if first else []).decode(errors="replace")  # 0 ends a document
    assert run.generate(["def "], 1, temperature=0.0) == ["def " + likeliest]
    with pytest.raises(vortaro.UsageError, match="is not a run folder"):
        vortaro.load(str(ROOT))


def test_a_plan_runs_in_a_process_of_its_own():
    plan = vortaro.plan(vortaro.get("tiny.StdlibTiny", smoke=True), chip="v4")
    assert plan["fits"]
    assert "v4" in repr(plan)
    with pytest.raises(vortaro.VortaroError, match="Did you mean 'v4'"):
        vortaro.plan("tiny.StdlibTiny", chip="v44")


def test_list_needs_no_jax():
    code = (
        "import sys; from vortaro.command_line import main; main(['list', 'tiny.*']); assert 'jax' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "StdlibTiny" in done.stdout


def test_commands_of_the_runner_replace_the_process(monkeypatch, capsys):
    started = []
    monkeypatch.setattr(command_line.os, "execv", lambda program, arguments: started.append(arguments[1:]))
    for words in (["train", "--exp=x"], ["import", "f.pth"], ["launch", "local", "--num_processes=2"]):
        command_line.main(words)
    assert started == [
        ["-m", "runners.main", "--mode=train", "--exp=x"],
        ["-m", "runners.convert", "import", "f.pth"],
        ["-m", "launch", "local", "--num_processes=2"],
    ]
    assert command_line.main(["traim"]) == 2
    assert capsys.readouterr().err == "vortaro: Unknown command 'traim'. Did you mean 'train' or 'train_vocab'?\n"
    assert command_line.main(["show", "tiny.StdlibTiny", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["experiment"] == "tiny.StdlibTiny"
