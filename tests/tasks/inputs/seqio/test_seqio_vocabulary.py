"""Vocabularies of seqio tasks."""

import numpy as np
import pytest

from layers.errors import UsageError
from tasks.inputs.seqio.vocabulary import SeqioVocabulary
from tasks.vocabularies.vocabulary import Vocabulary
from tests.support.vocabularies import sentence_piece


def test_bytes(seqio_tasks):
    vocabulary = SeqioVocabulary(task=seqio_tasks.lines, rows=264)
    ids = vocabulary.encode("é a")
    assert ids == [byte + 3 for byte in "é a".encode()]
    assert vocabulary.decode(ids) == "é a"
    assert (vocabulary.size, vocabulary.start_id, vocabulary.stop_id) == (264, 0, 1)
    sizes = vocabulary.token_bytes()
    assert sizes.shape == (264,)
    assert np.all(sizes[ids] == 1)
    assert sizes[:3].sum() == sizes[259:].sum() == 0


def test_sentence_pieces(seqio_tasks, tmp_path):
    import sentencepiece

    from tasks.inputs.seqio.registration import lines_task

    sentencepiece.SentencePieceTrainer.Train(
        f"--input={seqio_tasks.folder / 'lines.txt'} --model_prefix={tmp_path / 'pieces'} --vocab_size=285 "
        f"--byte_fallback=true --pad_id=0 --eos_id=1 --unk_id=2 --bos_id=-1 --minloglevel=2"
    )
    model = str(tmp_path / "pieces.model")
    name = lines_task("test_pieces", {"train": str(seqio_tasks.folder / "lines.txt")}, vocabulary=model)
    vocabulary = SeqioVocabulary(task=name, rows=400)
    text = "line 007 abcdefghij ü"
    ids = vocabulary.encode(text)
    assert vocabulary.decode(ids) == text
    assert vocabulary.token_bytes()[ids].sum() == len(text.encode()) + 1, "a space is put in front"
    assert vocabulary.token_bytes()[[0, 1, 2]].sum() == 0
    with pytest.raises(UsageError, match=r"VOCAB_SIZE = 256 is smaller than .* seqio task .* \(\d+ tokens\)"):
        SeqioVocabulary(task=name, rows=256).encode("a")


def test_everything_the_protocol_asks_for(seqio_tasks):
    bytes_v = SeqioVocabulary(task=seqio_tasks.lines, rows=264)
    numbers = SeqioVocabulary(task=seqio_tasks.masked, rows=20)
    members = [name for name in vars(Vocabulary) if not name.startswith("_")]
    assert all(hasattr(vocabulary, name) for vocabulary in (bytes_v, numbers) for name in members)
    assert (bytes_v.is_text, numbers.is_text) == (True, False)
    assert bytes_v.describe() == f"the vocabulary of seqio task '{seqio_tasks.lines}' (ByteVocabulary)"
    batch = bytes_v.encode_batch(["é a", ""])
    assert [ids.tolist() for ids in batch] == [bytes_v.encode("é a"), []]
    assert {ids.dtype for ids in batch} == {np.dtype(np.int32)}
    assert bytes_v.encode_batch([]) == []
    assert numbers.decode(numbers.encode("7 3")) == "7 3"


def test_a_fingerprint_is_of_content(seqio_tasks, tmp_path):
    import seqio

    content = sentence_piece(tmp_path / "one.model").read_bytes()
    (tmp_path / "same.model").write_bytes(content)
    sentence_piece(tmp_path / "other.model", vocab_size=50)
    vocabularies = {
        "bytes": "bytes",
        "one": str(tmp_path / "one.model"),
        "other": str(tmp_path / "other.model"),
        "extra": seqio.SentencePieceVocabulary(str(tmp_path / "one.model"), extra_ids=2),
        "numbers": seqio.PassThroughVocabulary(20),
        "more": seqio.PassThroughVocabulary(21),
        "letters": seqio.PartialCodepointVocabulary([97, 98]),
        "turned": seqio.PartialCodepointVocabulary([98, 99]),
    }
    prints = {name: fingerprint(name, vocabulary) for name, vocabulary in vocabularies.items()}
    assert len({*prints.values()}) == len(prints)
    assert fingerprint("again", str(tmp_path / "same.model")) == prints["one"]
    assert fingerprint("letters_again", seqio.PartialCodepointVocabulary([97, 98])) == prints["letters"]
    assert SeqioVocabulary(task=seqio_tasks.lines, rows=300).fingerprint == prints["bytes"]


def fingerprint(name, vocabulary):
    """Of a task with this vocabulary."""
    from tasks.inputs.seqio.registration import lines_task

    task = lines_task(f"test_prints_{name}", {"train": "x"}, vocabulary=vocabulary)
    return SeqioVocabulary(task=task, rows=400).fingerprint


def test_a_model_that_is_not_there(seqio_tasks):
    from tasks.inputs.seqio.registration import lines_task

    with pytest.raises(UsageError, match=r"SentencePiece model 'none.model' does not exist"):
        lines_task("test_none", {"train": "x"}, vocabulary="none.model")


def test_a_name_taken(seqio_tasks):
    from tasks.inputs.seqio.registration import lines_task

    with pytest.raises(UsageError, match="'vortaro_lines:test' is already registered"):
        lines_task("test", {"train": "x"})


def test_without_seqio_there_is_one_sentence(monkeypatch):
    import sys

    from tasks.inputs.seqio.library import libraries

    monkeypatch.setitem(sys.modules, "seqio", None)
    with pytest.raises(UsageError, match=r"needs the package seqio .*'\.\[seqio\]'"):
        libraries()
