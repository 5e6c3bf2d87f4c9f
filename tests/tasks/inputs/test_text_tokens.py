"""Text as tokens of a vocabulary in a file: what rows hold, bits per byte, texts of inputs and of what wraps them."""

import dataclasses
import itertools
import math

import jax
import numpy as np
import pytest

from layers.errors import UsageError
from registry.build import build
from registry.records.snapshot import flat_config, snapshot
from registry.resolve import resolve
from runners.session import Session
from runners.training.evaluate import evaluate
from tasks.inputs.byte_text import StandardLibrary, stretches
from tasks.inputs.length_curriculum import LengthCurriculumInput
from tasks.inputs.masked import MaskedInput
from tasks.inputs.rows import TokensInput
from tasks.inputs.sources.running_text import RunningText
from tasks.inputs.synthetic import SyntheticPackedInput
from tasks.inputs.tbptt_chunks import TbpttInput
from tasks.inputs.token_cache import CachedDocuments
from tasks.metrics import language_scalars
from tasks.vocabularies.subwords import Gpt2Vocabulary, SentencePieceVocabulary
from tests.support.references.models import Small
from tests.support.sources_of import cached
from tests.support.vocabularies import ODD, TEXT, byte_pairs, sentence_piece

SIZES = {"batch_size": 2, "seq_len": 8}


def rows(folder, vocabulary, path="text.txt", **fields):
    """Rows of a text file, or of the standard library."""
    text = RunningText(path=path and str(folder / path))
    source = CachedDocuments(source=text, vocabulary=vocabulary, folder=str(folder / "cache"), stop_tokens=path is None)
    return TokensInput(**{**SIZES, "source": source, **fields})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A text file, byte pairs and a SentencePiece model."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "text.txt").write_text((TEXT + ODD.replace("\0", "")) * 9)
    byte_pairs(folder / "pairs")
    sentence_piece(folder / "words.model")
    return folder


def test_stretches_end_after_separators():
    for content, size in itertools.product((b"", b"\n", b"a\nbb\nccc", b"\n\na\n", b"a" * 50 + b"\n"), (1, 3, 100)):
        parts = list(stretches(np.frombuffer(content, np.uint8), b"\n", size))
        assert b"".join(parts) == content
        assert all(part.endswith(b"\n") for part in parts[:-1])


def test_a_text_file_is_encoded_completely(folder):
    source = rows(folder, Gpt2Vocabulary(str(folder / "pairs")))
    raw = RunningText(path=str(folder / "text.txt"))._bytes.text.read("train").tobytes()
    ids = source.tokens.read(0, 10**6)
    assert source.source.vocabulary.decode(ids.tolist()) == raw.decode(errors="replace")
    one_pass = dataclasses.replace(source, shuffle=False)
    batches = [one_pass.batch(k) for k in range(one_pass.num_batches() or 0)]
    targets = np.concatenate([batch.targets[batch.weights > 0] for batch in batches])
    assert targets.tolist() == ids[1:].tolist()
    assert "".join(source.texts()) == raw.decode(errors="replace")


def test_files_of_the_standard_library_are_documents(folder, monkeypatch):
    text = b"def f():\n    pass\0import os\n\0"
    monkeypatch.setattr(StandardLibrary, "read", lambda self, split: np.frombuffer(text, np.uint8))
    monkeypatch.setattr(StandardLibrary, "version", lambda self: "two files")
    vocabulary = Gpt2Vocabulary(str(folder / "pairs"))
    source = rows(folder, vocabulary, path=None, batch_size=1, seq_len=4)
    assert list(source.texts()) == ["def f():\n    pass", "import os\n"]
    ids = [[*vocabulary.encode(document), vocabulary.stop_id] for document in source.texts()]
    assert source.tokens.read(0, 99).tolist() == list(itertools.chain(*ids))
    assert source.byte_ratio == 1.0


def test_too_little_text(folder):
    source = rows(folder, Gpt2Vocabulary(str(folder / "pairs")), seq_len=10**5, split="validation")
    with pytest.raises(UsageError, match=r"The validation split of .*text.txt' has \d+ tokens, fewer than"):
        source.require_data()


def test_what_wraps_an_input_has_its_texts_and_ratio(folder):
    vocabulary = SentencePieceVocabulary(str(folder / "words.model"))
    source = rows(folder, vocabulary)
    assert source.byte_ratio != 1.0
    around = [
        TbpttInput(source=source, batch_size=2, seq_len=4),
        LengthCurriculumInput(source=source, lengths=(4,), steps=2, **SIZES),
        MaskedInput(source=source, vocab_size=64, mask_id=3),
    ]
    for wrapped in around:
        assert wrapped.byte_ratio == source.byte_ratio
        assert list(wrapped.texts()) == list(source.texts())
    with pytest.raises(UsageError, match="has no text to train a vocabulary on"):
        SyntheticPackedInput(**SIZES, vocab_size=9).texts()


@pytest.mark.parametrize("kind", ["gpt2", "sentencepiece"])
def test_bits_per_byte_of_a_split_are_its_nats_over_its_raw_bytes(folder, kind):
    path = {"gpt2": folder / "pairs", "sentencepiece": folder / "words.model"}[kind]
    knobs = {"VOCABULARY": kind, "VOCABULARY_PATH": str(path), "VOCAB_SIZE": 290, "DATA": "text", "BATCH_SIZE": 2}
    knobs |= {"DATA_PATH": str(folder / "text.txt"), "NUM_LAYERS": 1}
    session = Session(Small.derive(**knobs)(), jax.devices()[:1])
    documents = (ODD, "the  cat", TEXT)
    source = cached(folder / "cache", documents, vocabulary=session.task.vocabulary, fractions=(0.0, 1.0, 0.0))
    sizes = {"batch_size": 2, "seq_len": 16, "split": "validation", "shuffle": False}
    held_out = TokensInput(source=source, rows="restart", **sizes)
    session.test = dataclasses.replace(session.test, inputs={"validation": held_out})
    with session.placed():
        scalars = evaluate(session, session.functions.init().variables, "validation")
    nats = scalars["loss"] * len(held_out.tokens)
    raw_bytes = sum(len(document.encode()) for document in documents)
    assert scalars["bits_per_byte"] == pytest.approx(nats / math.log(2) / raw_bytes, rel=1e-5)
    assert (held_out.byte_ratio == 1) == (kind == "gpt2")


def test_the_ratio_divides_bits_per_byte_alone():
    ones = dict.fromkeys(("weight", "loss", "objective", "normalizer", "correct", "bytes"), 1.0) | {"reports": {}}
    plain, half = language_scalars(ones), language_scalars(ones, 2.0)
    assert half.pop("bits_per_byte") * 2 == plain.pop("bits_per_byte")
    assert half == plain


NO_FILE = ["VOCABULARY=sentencepiece", "VOCABULARY_PATH=no/such.model"]


@pytest.mark.parametrize("name", ["StdlibTiny", "GptStdlib", "MuTiny", "VQStdlib", "DenseLm8B2x2", "MLPerfBertDense1T"])
def test_every_family_follows_the_knobs_and_reads_no_file(name):
    """The table has VOCAB_SIZE rows, the input and the task one vocabulary; nothing is read to show it."""
    experiment = resolve(name, [*NO_FILE, "VOCAB_SIZE=300", "DATA=text"], smoke=True)
    config = flat_config(experiment)
    assert config["task.vocabulary.path"] == "'no/such.model'"
    places = [path for path in config if path.endswith(".vocabulary.path")]
    assert {path.partition(".")[0] for path in places} == {"task", "train", "test"}
    assert config["task.model.embedding.vocab_size"] == "300"
    rows = snapshot(experiment, dict.fromkeys(experiment.MESH_AXES, 1))["weights"]
    assert any(300 <= max(row["shape"], default=0) <= 304 for row in rows)
    if name.startswith("MLPerf"):
        assert config["train.input.mask_id"] == config["test.inputs.test.mask_id"] == "3"
    build(experiment.Train(), "train")


def test_small_forms_are_bytes_again():
    class WithWords(Small):
        VOCABULARY = "gpt2"
        VOCABULARY_PATH = "somewhere"

    small = WithWords.Smoke()
    assert (small.VOCABULARY, small.VOCABULARY_PATH) == ("bytes", None)


def test_data_that_are_bytes_take_no_other_vocabulary():
    with pytest.raises(UsageError, match=r"VOCABULARY must be bytes with DATA = enwik8 \(got sentencepiece\)\."):
        flat_config(resolve("vq.VQEnwik8", [*NO_FILE, "DATA=enwik8"]))
