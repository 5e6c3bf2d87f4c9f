"""Training on a seqio task: the same bits when resumed."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from layers.errors import UsageError
from runners.main import main, parse, run
from tests.conftest import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("seqio") is None, reason="needs seqio: pip install -e '.[seqio]'"),
]

MODULE = """
from tasks.inputs.seqio.registration import lines_task

lines_task("run", {"train": "train.txt", "validation": "held.txt"})
"""
KNOBS = ("DATA=seqio", "SEQIO_TASK=vortaro_lines:run", "VOCAB_SIZE=264", "NUM_STEPS=12", "SAVE_EVERY=8", "LOG_EVERY=1")
PATHS = ("EVAL_EVERY=12", "train.input.snapshot_every=3", "train.keep_last=2")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with data and a module that registers it, to work in."""
    (tmp_path / "run_tasks.py").write_text(MODULE)
    for name, count in {"train": 300, "held": 20}.items():
        (tmp_path / f"{name}.txt").write_text("".join(f"{name} {i} {'ab' * (i % 9)}\n" for i in range(count)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_resumed_run_ends_in_the_same_bits(here, capsys):
    flags = ["--exp=tiny.StdlibTiny", "--smoke", "--import=run_tasks", "--workdir=run", "--no-tensorboard"]
    options = parse([*flags, *(f"--set={what}" for what in KNOBS + PATHS)])
    assert run(options) == 0
    assert "Data: seqio task 'vortaro_lines:run', split 'train'" in capsys.readouterr().out
    whole = _losses(here / "run")
    saved = json.loads((here / "run/checkpoints/8/extra/metadata").read_text())
    assert saved["input"]["next_batch"] == 8
    assert saved["input"]["snapshot"]["batch"] == 6
    shutil.rmtree(here / "run/checkpoints/12")
    assert run(options) == 0
    assert "Resumed at step 8" in capsys.readouterr().out
    assert _losses(here / "run") == whole


def test_data_is_shown_a_run_trained_and_sampled_from(here, capsys):
    flags = ["--import=run_tasks", "--workdir=run", *(f"--set={what}" for what in (*KNOBS, "NUM_STEPS=4"))]
    experiment = ["--exp=tiny.StdlibTiny", "--smoke"]
    assert main([*experiment, *flags, "--mode=inspect_data"]) == 0
    output = capsys.readouterr().out
    assert "Tokens: the vocabulary of seqio task 'vortaro_lines:run' (ByteVocabulary), 264 in total" in output
    assert "positions 0 to " in output
    assert "train 1" in output
    assert main([*experiment, *flags, "--no-tensorboard"]) == 0, capsys.readouterr().err
    vocabulary = json.loads((here / "run/experiment.json").read_text())["vocabulary"]
    assert vocabulary["is"] == "the vocabulary of seqio task 'vortaro_lines:run' (ByteVocabulary)"
    assert len(vocabulary["fingerprint"]) == 32
    capsys.readouterr()
    sample = ["--mode=sample", "--max_new_tokens=4", "--prompt=train 1"]
    assert main(["--workdir=run", "--import=run_tasks", *sample]) == 0, capsys.readouterr().err
    assert capsys.readouterr().out.startswith("train 1")


def test_an_unknown_task_is_one_sentence():
    sets = ["--set=DATA=seqio", "--set=SEQIO_TASK=vortaro_tfds:pg91"]
    options = parse(["--exp=tiny.StdlibTiny", "--smoke", "--workdir=run", *sets])
    with pytest.raises(
        UsageError, match=r"Unknown seqio Task or Mixture 'vortaro_tfds:pg91'. Did you mean 'vortaro_tfds:pg"
    ):
        run(options)


def test_a_vocabulary_larger_than_the_embedding_is_one_sentence():
    sets = ["--set=DATA=seqio", "--set=SEQIO_TASK=vortaro_tfds:pg19"]
    options = parse(["--exp=tiny.StdlibTiny", "--smoke", "--workdir=run", *sets])
    with pytest.raises(UsageError, match=r"VOCAB_SIZE = 256 is smaller than .* seqio task .* \(259 tokens\)"):
        run(options)


def test_showing_an_experiment_needs_no_seqio():
    check = (
        "import sys; from registry.resolve import resolve; from registry.records.snapshot import snapshot; "
        "snapshot(resolve('tiny.StdlibTiny', ['DATA=seqio', 'SEQIO_TASK=any'])); "
        "assert not {'tensorflow', 'seqio'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _losses(workdir: Path) -> list[float]:
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines]
