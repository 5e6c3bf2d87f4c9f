"""Runs on data of one's own: what may change between two starts, and what knobs mean together."""

import json
import re

import numpy as np
import pytest

from registry.build import build
from registry.resolve import resolve
from runners.main import main

TRAIN = ["--exp=gpt.GptStdlib", "--smoke", "--no-tensorboard", "--workdir=run"]
JSONL = ["DATA=jsonl", "DATA_PATH=a.jsonl", "SEQ_LEN=16", "EVAL_EVERY=100"]


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    """A folder to work in, with JSON lines and a text file in it, and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    texts = [f"{i} " + "word " * (i % 12) for i in range(200)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text, "body": text[::-1]}) + "\n" for text in texts))
    (tmp_path / "a.txt").write_text("\n".join(texts))
    return tmp_path


def sets(*knobs):
    return [f"--set={knob}" for knob in knobs]


def train_input(*knobs, name="gpt.GptStdlib"):
    return build(resolve(name, knobs, smoke=True).Train(), "train").input


def test_other_data_under_the_same_name_are_not_gone_on_with(data, capsys):
    steps = "train.num_steps=2"
    assert main([*TRAIN, *sets(*JSONL, steps)]) == 0
    with (data / "a.jsonl").open("a") as file:
        file.write(json.dumps({"text": "one more " * 20}) + "\n")
    capsys.readouterr()
    assert main([*TRAIN, *sets(*JSONL, steps)]) == 2
    error = capsys.readouterr().err
    assert re.search(r"The training data have changed since the checkpoint \(then \d+ tokens", error), error
    assert "--allow_changes" in error
    assert main([*TRAIN, *sets(*JSONL, "train.num_steps=3"), "--allow_changes"]) == 0, capsys.readouterr().err


def test_all_sources_of_a_mixture_have_one_vocabulary(data):
    knobs = ["DATA=mixture", 'MIXTURE=(("text:a.txt",1),("jsonl:a.jsonl",1))', "SEQ_LEN=16"]
    for name, first in (("vq.VQStdlib", 3), ("gpt.GptStdlib", 0)):
        batch = train_input(*knobs, name=name).batch(0)
        ids = set(np.unique(batch.targets[batch.weights > 0]).tolist())
        texts = {ord(letter) + first for letter in "word 0123456789\n"}
        assert ids - texts <= {0, 1}, name
        assert len(ids & texts) > 8


def test_a_source_of_a_mixture_may_name_its_column(data):
    knobs = ["DATA=mixture", 'MIXTURE=(("jsonl:a.jsonl#body",1),)', "SEQ_LEN=16", "ROWS=pack"]
    assert next(train_input(*knobs).texts()).endswith("0")


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        (("DATA_PATH=a.txt", "VALIDATION_PATH=b.txt"), "DATA = text does not read VALIDATION_PATH = b.txt"),
        (
            ("DATA=mixture", 'MIXTURE=(("jsonl:a.jsonl",1),)', "TEST_PATH=t.jsonl"),
            "'jsonl:a.jsonl' in MIXTURE does not read TEST_PATH",
        ),
        (("DATA=synthetic", "ROWS=pack"), "ROWS, DOCUMENT_MASKS and MAX_SEGMENTS have no effect with DATA = synthetic"),
        (
            ("MAX_SEGMENTS=4", "ROWS=pack"),
            "DOCUMENT_MASKS = False does not separate them. Set it, or remove the limit.",
        ),
        (("MAX_SEGMENTS=4",), "ROWS = cut packs none. Set ROWS to pack, or remove the limit."),
        (
            ("DATA=jsonl", "DATA_PATH=a.jsonl", "VALIDATION_PATH=./a.jsonl"),
            "'a.jsonl' is named to train on and as './a.jsonl' for the validation split",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(data, capsys, knobs, message):
    assert main(["--exp=gpt.GptStdlib", "--smoke", "--mode=inspect_data", "--workdir=look", *sets(*knobs)]) == 2
    assert message in capsys.readouterr().err


def test_ids_too_narrow_for_the_vocabulary_are_refused(data, capsys):
    np.save(data / "narrow.npy", np.arange(100, dtype=np.uint8))
    knobs = ["DATA=tokens", "DATA_PATH=narrow.npy", "SEQ_LEN=4", "SPLIT_FRACTIONS=0.5,0.25,0.25"]
    assert main(["--exp=vq.VQStdlib", "--smoke", "--mode=inspect_data", "--workdir=look", *sets(*knobs)]) == 2
    assert "uint8, which cannot hold the 259 tokens of" in capsys.readouterr().err


def test_data_of_the_papers_may_be_packed_and_masked():
    knobs = ["DATA=enwik8", "DATA_PATH=a.txt", "DOCUMENT_MASKS=true"]
    source = train_input(*knobs, name="vq.VQEnwik8")
    assert (source.rows, source.document_masks) == ("restart", True)
