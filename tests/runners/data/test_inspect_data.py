"""Inspection of an experiment's data before training; bad data are reported in one sentence."""

import dataclasses
import json
import re

import numpy as np
import pytest

from registry.build import build
from registry.resolve import resolve
from runners.data.inspect_data import rows_of, sample_split, segment_lengths
from runners.main import main
from tasks.vocabularies.subwords import SentencePieceVocabulary
from tasks.vocabularies.vocabulary import ByteVocabulary
from tests.support.vocabularies import sentence_piece

READS = ("DATA=jsonl", "DATA_PATH=a.jsonl")


@pytest.fixture
def documents(tmp_path, monkeypatch):
    """A folder to work in, with JSON lines in it and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    texts = [f"{i} " + "word " * int(rng.integers(1, 12)) for i in range(200)]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    return texts


def sets(*knobs):
    return [f"--set={knob}" for knob in knobs]


def inspect(*knobs):
    flags = ["--exp=gpt.GptStdlib", "--smoke", "--mode=inspect_data", "--workdir=look"]
    return main([*flags, *sets(*READS, *knobs)])


def test_rows_lengths_padding_and_speed_are_shown(documents, capsys, tmp_path):
    assert inspect("ROWS=pack", "DOCUMENT_MASKS=true") == 0
    output = capsys.readouterr().out
    assert "Tokens: bytes" in output
    assert re.search(r"positions with a target +(9[7-9]|100)\.\d%", output)
    assert re.search(r"tokens per second +[\d,]{4,}", output)
    shown = re.findall(r"row \d+, positions \d+ to \d+: '(.*)'", output)
    assert shown
    assert all("word" in text for text in shown)
    page = (tmp_path / "look" / "data.html").read_text()
    assert page.count('<span class="segment') >= 4
    assert '"name":"validation","x":[' in page
    assert (tmp_path / "look" / "assets" / "figures.js").exists()


def test_padding_is_remarked_upon(documents, capsys):
    assert inspect("ROWS=truncate", "SEQ_LEN=256") == 0
    assert "of the positions of train are padding. --set=ROWS=pack" in capsys.readouterr().out


def test_measures_are_those_of_the_rows_that_were_read(documents):
    knobs = ["DATA=jsonl", "DATA_PATH=a.jsonl", "ROWS=truncate", "SEQ_LEN=16", "DOCUMENT_MASKS=true"]
    source = build(resolve("gpt.GptStdlib", knobs, smoke=True).Test(), "test").inputs["validation"]
    found = sample_split("validation", source, ByteVocabulary())
    rows = [row for batch in source.iterator() for row in rows_of(batch) if row.weights.any()]
    assert found.rows == len(rows)
    assert found.targets == sum(int(row.weights.sum()) for row in rows)
    assert found.lengths.tolist() == [length for row in rows for length in segment_lengths(row)]
    assert found.positions == source.num_batches() * 8 * 16
    assert found.text_bytes == sum(np.count_nonzero(row.targets) for row in rows), "an end is not text"


@pytest.mark.parametrize("knobs", [("ROWS=pack",), ("ROWS=cut",), ("ROWS=cut", "TBPTT_LEN=8")])
def test_documents_are_counted_and_measured_whatever_rows_are(documents, capsys, tmp_path, knobs):
    source = build(resolve("gpt.GptStdlib", [*READS], smoke=True).Train(), "train").input
    texts = [dataclasses.replace(source, split=split).texts() for split in ("train", "validation", "test")]
    sizes = [[len(text.encode()) + 1 for text in some] for some in texts]  # and the end
    assert sum(map(len, sizes)) == len(documents)
    assert inspect(*knobs) == 0
    output = capsys.readouterr().out
    numbers = lambda name: [int(n) for n in re.search(rf"^{name} +(.*)$", output, re.MULTILINE)[1].split()]
    assert numbers("documents in the split") == [len(some) for some in sizes]
    assert numbers("document length: median") == [round(float(np.median(some))) for some in sizes]
    assert numbers("document length: maximum") == [max(some) for some in sizes]
    assert "Lengths of documents" in (tmp_path / "look" / "data.html").read_text()


def test_documents_of_a_mixture_are_those_of_its_sources(documents, capsys):
    assert inspect("DATA=mixture", 'MIXTURE=(("jsonl:a.jsonl",1),("lines:a.jsonl",2))') == 0
    line = re.search(r"documents in the split +(.*)", capsys.readouterr().out)
    assert line is not None
    assert sum(map(int, line[1].split())) == 2 * len(documents)


def test_documents_that_nobody_counted_are_not_shown(documents, capsys, tmp_path):
    flags = ["--exp=gpt.GptStdlib", "--smoke", "--mode=inspect_data", "--workdir=look"]
    assert main([*flags, "--set=DATA=synthetic"]) == 0
    assert re.search(r"documents in the split +- ", capsys.readouterr().out)
    assert "Lengths of segments" in (tmp_path / "look" / "data.html").read_text()


def test_bytes_are_those_of_the_text_and_not_of_its_pieces(documents, tmp_path):
    texts = [f"{i} " + "word   " * (i % 9) for i in range(400)]  # of runs of spaces a model of pieces keeps one
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    pieces = SentencePieceVocabulary(str(sentence_piece(tmp_path / "words.model")))
    knobs = [*READS, "VOCABULARY=sentencepiece", f"VOCABULARY_PATH={pieces.path}", "VOCAB_SIZE=64"]
    source = build(resolve("gpt.GptStdlib", knobs, smoke=True).Test(), "test").inputs["validation"]
    found = sample_split("validation", source, pieces)
    counted = sum(pieces.token_bytes()[batch.targets[batch.weights > 0]].sum() for batch in source.iterator())
    assert source.byte_ratio > 1.2
    assert found.text_bytes == pytest.approx(counted * source.byte_ratio)


@pytest.mark.parametrize(
    ("content", "knobs", "message"),
    [
        (b"", (), r"'a.jsonl' is empty"),
        (b'{"txt": "a"}\n', (), r"no column 'text'.*'txt'"),
        (b"not json\n", (), r"No line of 'a.jsonl' is a JSON object"),
        (b'{"text": "a"}\n', ("DATA_COLUMN=body",), r"no column 'body'"),
        (b'{"text": "a"}\n', ("DATA_PATH=b*.jsonl",), r"'b\*.jsonl'"),
        (b'{"text": "a"}\n', ("DATA_PATH=@list",), r"'list'"),
        (b'{"text": "a"}\n', ("DATA=huggingface",), r"DATA = huggingface needs DATASET. Set it: --set=DATASET="),
        (b'{"text": "a"}\n', ("DATA=mixture",), r"DATA = mixture needs sources"),
        (b'{"text": "a"}\n', ("DATA=mixture", 'MIXTURE=(("josnl:a.jsonl",1),)'), r"Did you mean 'jsonl'"),
        (b'{"text": "a"}\n', ("SPLIT_FRACTIONS=0.5,0.1,0.1",), r"must be three numbers"),
        (b'{"text": "a"}\n', ("DATA=jsno",), r"DATA.*jsonl"),
        (b'{"text": "a"}\n', ("DATA=tokens",), r"ends? in .npy or .bin"),
    ],
)
def test_bad_data_is_one_sentence(documents, tmp_path, capsys, content, knobs, message):
    (tmp_path / "a.jsonl").write_bytes(content)
    assert inspect(*knobs) == 2
    error = capsys.readouterr().err.strip()
    assert re.search(message, error), error
    assert "Traceback" not in error
    assert len(error.splitlines()) == 1


def test_documents_that_are_not_text_are_skipped_and_counted(documents, tmp_path, capsys):
    with (tmp_path / "a.jsonl").open("ab") as file:
        file.write(b'\n{"text": "\xff"}\n{"text": ""}\n{"te')
    assert inspect("ROWS=pack") == 0
    assert re.search(r"Skipped 3 documents: .*1 for invalid UTF-8", capsys.readouterr().out)


def test_a_file_removed_after_its_tokens_are_cached_changes_nothing_in_the_run(documents, tmp_path, capsys):
    experiment = resolve("gpt.GptStdlib", ["DATA=jsonl", "DATA_PATH=a.jsonl"], smoke=True)
    source = build(experiment.Train(), "train").input
    source.require_data()
    before = source.batch(7)
    (tmp_path / "a.jsonl").unlink()
    assert np.array_equal(source.batch(7).targets, before.targets)
    source.batch(10**6)
    assert inspect() == 2, "a run that begins without it is refused"
    assert re.search(r"'a.jsonl'", capsys.readouterr().err)
