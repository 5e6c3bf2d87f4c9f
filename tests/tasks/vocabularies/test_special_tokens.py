"""Special tokens in files of Hugging Face folders: ends, starts, and tokens without a row of the embedding."""

import json
import time

import numpy as np
import pytest

from layers.errors import UsageError
from runners.sampling.sample import _Texts, until_stop
from tasks.vocabularies import tokenizer_files
from tasks.vocabularies.subwords import HuggingFaceVocabulary
from tasks.vocabularies.vocabulary import ByteVocabulary, IdVocabulary
from tests.support.references.models import task_of
from tests.support.vocabularies import TEXT, byte_pairs


def folder_of(folder, added=(), **files):
    """A folder of `byte_pairs` with further special tokens and JSON files; returns its vocabulary."""
    from tokenizers import AddedToken, Tokenizer

    file = byte_pairs(folder) / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in added])
    tokenizer.save(str(file))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return HuggingFaceVocabulary(str(folder))


def task_with(folder, rows):
    return task_of(VOCABULARY="huggingface", VOCABULARY_PATH=str(folder), DATA="text", VOCAB_SIZE=rows)


def test_a_special_token_needs_no_row(tmp_path):
    """As Gemma 3 1B, with a token 262144 for 262144 rows."""
    vocabulary = folder_of(tmp_path, ["<image>"])
    assert (vocabulary.size, vocabulary.needed_rows) == (291, 290)
    assert max(vocabulary.encode(f"{TEXT} <image>")) < 290
    assert task_with(tmp_path, 290)._token_bytes.tolist() == vocabulary.token_bytes()[:290].tolist()
    padded = task_with(tmp_path, 300)._token_bytes
    assert (len(padded), padded[290:].sum()) == (300, 0)
    with pytest.raises(UsageError, match=r"VOCAB_SIZE = 289 is smaller than .* \(291 tokens\)\. Set VOCAB_SIZE=291"):
        _ = task_with(tmp_path, 289)._token_bytes


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config": {"eos_token": "<image>"}},
        {"tokenizer_config": {"eos_token": "<|endoftext|>"}, "generation_config": {"eos_token_id": [0, 290]}},
    ],
)
def test_an_end_token_needs_a_row(tmp_path, files):
    assert folder_of(tmp_path, ["<image>"], **files).needed_rows == 291
    with pytest.raises(UsageError, match="VOCAB_SIZE = 290 is smaller than the vocabulary"):
        _ = task_with(tmp_path, 290)._token_bytes


def test_other_vocabularies_need_all_rows():
    assert (IdVocabulary(size=8).needed_rows, ByteVocabulary(special_tokens=3).needed_rows) == (8, 259)


def test_stop_ids(tmp_path):
    """Those of generation_config.json and the one that ends documents, which is the first."""
    config = {"eos_token": {"content": "<|endoftext|>"}}
    named = lambda name, ends: folder_of(
        tmp_path / name, ["<turn>", "<call>"], tokenizer_config=config, generation_config={"eos_token_id": ends}
    )
    several, one = named("several", [291, 0, 290, 290, 999]), named("one", 0)
    alone = folder_of(tmp_path / "alone", ["<turn>", "<call>"], tokenizer_config=config)
    assert (several.stop_id, several.stop_ids) == (0, (0, 291, 290))
    assert one.stop_ids == alone.stop_ids == (0,)
    assert one.fingerprint == alone.fingerprint
    assert several.fingerprint not in (one.fingerprint, named("fewer", [290]).fingerprint)
    assert several.fingerprint == named("order", [290, 291]).fingerprint
    assert several.encode(TEXT) == alone.encode(TEXT)
    only_ids = folder_of(tmp_path / "ids", ["<turn>"], generation_config={"eos_token_id": [290, 0]})
    assert (only_ids.stop_id, only_ids.stop_ids) == (290, (290, 0))


def test_stop_ids_of_other_vocabularies():
    assert ByteVocabulary(special_tokens=3).stop_ids == (1,)
    assert IdVocabulary(size=8).stop_ids == ()
    assert IdVocabulary(size=8, stop_id=3).stop_ids == (3,)


def test_the_text_of_a_sample_ends_at_any_stop_token(tmp_path, capsys):
    vocabulary = folder_of(tmp_path, ["<turn>"], generation_config={"eos_token_id": [0, 290]})
    words = vocabulary.encode("the cat sat")
    assert until_stop([*words, 290, 5, 0], vocabulary.stop_ids) == words
    texts = _Texts(vocabulary, [[], []], vocabulary.stop_ids, streams=False)
    assert not texts.add(np.array([words, [*words[:-1], 0]]))
    assert texts.add(np.array([[290, 7], [0, 0]]))
    text, count = texts.finish()
    assert text.startswith("--- sample 1\nthe cat sat\n--- sample 2\n")
    assert (count, capsys.readouterr().out) == (2 * len(words) - 1, text + "\n")


@pytest.mark.parametrize("file", ["tokenizer_config", "special_tokens_map"])
def test_a_named_start_token(tmp_path, file):
    """As SmolLM2-Instruct, whose tokenizer does not put it before texts."""
    vocabulary = folder_of(tmp_path, ["<start>"], **{file: {"bos_token": "<start>", "eos_token": "<|endoftext|>"}})
    assert (vocabulary.named_start_id, vocabulary.start_id, vocabulary.stop_id) == (290, None, 0)
    unnamed = folder_of(tmp_path / "unnamed", ["<start>"], **{file: {"eos_token": "<|endoftext|>", "bos_token": None}})
    assert unnamed.named_start_id is None
    assert unnamed.fingerprint == vocabulary.fingerprint
    assert ByteVocabulary().named_start_id is None


@pytest.mark.parametrize("name", ["runs/words/tokenizer", "my words", "-words", "words/", "~/words", "a/b.json"])
def test_names_that_the_hub_cannot_have_are_paths(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tokenizer_files, "_by_transformers", None)
    with pytest.raises(UsageError, match=f"The tokenizer '{name}' cannot be read: no such file or folder"):
        _ = HuggingFaceVocabulary(name).size


def test_a_hub_without_a_network_is_asked_once(tmp_path, monkeypatch):
    huggingface_hub = pytest.importorskip("huggingface_hub", reason="needs pip install -e '.[hf]'")
    pytest.importorskip("transformers", reason="needs pip install -e '.[hf]'")
    asked = []

    def unreachable(self, name, **options):
        asked.append(name)
        raise OSError("no network")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", unreachable)
    began = time.monotonic()
    with pytest.raises(UsageError, match=r"'no-such-words' is neither a local path nor on the hub .*: no network\."):
        _ = HuggingFaceVocabulary("no-such-words").size
    assert (asked, time.monotonic() - began < 20) == (["no-such-words"], True)


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config": {"eos_token": {}, "bos_token": {"text": "a"}}},
        {"tokenizer_config": {"eos_token": [{"id": 1}], "bos_token": [["a"]]}},
        {"tokenizer_config": {"eos_token": True, "bos_token": 5}},
        {"generation_config": {"eos_token_id": {"content": None}}},
        {"special_tokens_map": []},
    ],
)
def test_names_of_tokens_of_other_types_are_ignored(tmp_path, files):
    vocabulary = folder_of(tmp_path, **files)
    assert vocabulary.decode([vocabulary.stop_id]) == "<|endoftext|>", "one of the usual ends"
    assert vocabulary.named_start_id is None
