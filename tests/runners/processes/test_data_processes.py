"""Every kind of data trains on two real processes, and resumes in the middle of an epoch."""

import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest

from testing import formats
from tests.conftest import ROOT, xla_flags
from tests.support.vocabularies import byte_pairs, sentence_piece

pytestmark = pytest.mark.slow

WORDS = ("one", "of", "the", "many", "small", "things", "that", "a", "model", "may", "learn", "from", "its", "data")
TASKS = """
from tasks.inputs.seqio.registration import lines_task

lines_task("own", {{"train": {train!r}, "validation": {train!r}}})
"""


def documents(count):
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS, size)) + f" {i}.\n" for i, size in enumerate(rng.integers(5, 60, count))]


def learned(folder, first, last, count=2):
    """Results and output of each process."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "XLA_FLAGS": xla_flags(4 // count), "PYTHONPATH": f"{ROOT}:{folder}"}
    command = [sys.executable, "-m", "tests.support.processes.data_processes", str(port), str(count)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [
        subprocess.Popen([*command, str(index), str(folder), str(first), str(last)], env=environment, cwd=ROOT, **pipes)
        for index in range(count)
    ]
    outputs = [process.communicate(timeout=900) for process in started]
    assert all(process.returncode == 0 for process in started), outputs
    return [json.loads(out.strip().splitlines()[-1]) for out, _ in outputs], [out for out, _ in outputs]


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    """The folder with data of all kinds, and the overrides for each."""
    folder = tmp_path_factory.mktemp("kinds")
    texts = documents(120)
    kinds = formats.write_all(texts, folder)
    packed = ["ROWS=pack", "DOCUMENT_MASKS=true"]
    kinds["jsonl, packed"] = [*kinds["jsonl"], *packed]
    kinds["standard library"] = ["DOCUMENT_MASKS=true"]
    (folder / "own_documents.py").write_text(f"def documents(split):\n    yield from {texts[:30]!r}\n")
    kinds["function"] = ["DATA=function", "DATASET=own_documents:documents", "ROWS=truncate"]
    parts = [[f"jsonl:{folder}/jsonl/*.jsonl", 3], [f"lines:{folder}/lines/a.txt", 1], ["text:", 1]]
    kinds["mixture"] = ["DATA=mixture", f"MIXTURE={tuple(map(tuple, parts))!r}"]
    other = tuple((name, 6 - weight) for name, weight in map(tuple, parts))
    phases = f"PHASES=(Phase(steps=2), Phase(steps=2, MIXTURE={other!r}, SEQ_LEN=8))"
    kinds["phases, the second after the checkpoint"] = [*kinds["mixture"], "NUM_STEPS=4", phases]
    byte_pairs(folder / "pairs")
    sentence_piece(folder / "words.model")
    larger = ["VOCAB_SIZE=290", "ROWS=pack"]
    kinds["gpt2's files"] = [*kinds["webdataset"], *larger, "VOCABULARY=gpt2", f"VOCABULARY_PATH={folder}/pairs"]
    sentences = ["VOCABULARY=sentencepiece", f"VOCABULARY_PATH={folder}/words.model"]
    kinds["sentencepiece"] = [*kinds["tfds"], *larger, *sentences]
    (folder / "own_tasks.py").write_text(TASKS.format(train=f"{folder}/lines/a.txt"))
    kinds["seqio"] = ["DATA=seqio", "SEQIO_TASK=vortaro_lines:own", "VOCAB_SIZE=264", "train.input.snapshot_every=1"]
    (folder / "kinds.json").write_text(json.dumps(kinds))
    return folder, kinds


def test_two_processes_learn_from_every_kind_and_resume_to_the_same_bits(kinds):
    folder, kinds = kinds
    whole, _ = learned(folder, 0, 4)
    resumed, printed = learned(folder, 2, 4)
    for process, words in zip(resumed, printed, strict=True):
        assert process["seqio"]["snapshot"] == 1, "the reader resumes from the snapshot before the last batch,"
        assert "read from its start" not in words, "which is this process's own"
    for kind in kinds:
        first, second = (process[kind] for process in whole)
        assert len(set(first["read"] + second["read"])) == 8, f"{kind}: rows of all batches differ, on both processes"
        for before, after in zip(whole, resumed, strict=True):
            assert after[kind]["read"] == before[kind]["read"][2:], kind
            assert after[kind]["weights"] == before[kind]["weights"], kind
