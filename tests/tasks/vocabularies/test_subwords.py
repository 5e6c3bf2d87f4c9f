"""Vocabularies in files: round trips, bytes, special ids, fingerprints, and what may be wrong with a file."""

import pickle
import random
import shutil
import sys

import numpy as np
import pytest

from layers.errors import UsageError
from runners.sampling.sample import _Texts
from tasks.vocabularies.subwords import Gpt2Vocabulary, HuggingFaceVocabulary, SentencePieceVocabulary
from tasks.vocabularies.vocabulary import ByteVocabulary, IdVocabulary
from tests.support.vocabularies import ODD, TEXT, byte_pairs, sentence_piece, unigrams, word_pieces


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """One vocabulary of each kind."""
    folder = tmp_path_factory.mktemp("vocabularies")
    pairs = byte_pairs(folder / "pairs")
    fallback = sentence_piece(folder / "bytes.model", byte_fallback=True, vocab_size=320)
    return {
        "bytes": ByteVocabulary(),
        "bytes3": ByteVocabulary(special_tokens=3),
        "gpt2": Gpt2Vocabulary(str(pairs)),
        "json": HuggingFaceVocabulary(str(pairs / "tokenizer.json")),
        "folder": HuggingFaceVocabulary(str(pairs)),
        "unigram": HuggingFaceVocabulary(str(unigrams(folder / "unigrams"))),
        "words": HuggingFaceVocabulary(str(word_pieces(folder / "words"))),
        "pieces": SentencePieceVocabulary(str(sentence_piece(folder / "words.model"))),
        "fallback": SentencePieceVocabulary(str(fallback)),
    }


NAMES = ("bytes", "bytes3", "gpt2", "json", "folder", "unigram", "words", "pieces", "fallback")
LOSSLESS = NAMES[:5]


@pytest.mark.parametrize("name", NAMES)
def test_many_texts_are_encoded_like_each(made, name):
    texts = [TEXT, ODD, "", "the cat", "\n"]
    batch = made[name].encode_batch(texts)
    assert all(ids.dtype == np.int32 and ids.ndim == 1 for ids in batch)
    assert [ids.tolist() for ids in batch] == [made[name].encode(text) for text in texts]
    assert made[name].encode_batch([]) == []
    assert max(ids.max(initial=0) for ids in batch) < made[name].size
    assert made[name].is_text
    assert made[name].stop_id is None or made[name].stop_id not in np.concatenate(batch) or name == "bytes"


@pytest.mark.parametrize("name", LOSSLESS)
def test_byte_level_text_comes_back_and_every_byte_is_counted(made, name):
    vocabulary = made[name]
    for text in (TEXT, ODD, "é", " "):
        ids = vocabulary.encode(text)
        assert vocabulary.decode(ids) == text
        ends = text.count("\0") if name == "bytes" else 0  # byte 0 ends a document, and is not text
        assert vocabulary.token_bytes()[ids].sum() == len(text.encode()) - ends


@pytest.mark.parametrize("name", ["unigram", "pieces", "fallback"])
def test_spaces_in_front_are_one_byte(made, name):
    """Of plain words with one space between, the space in front of the first is one too many."""
    ids, text = made[name].encode("the cat sat on the mat"), "the cat sat on the mat"
    assert made[name].decode(ids) == text
    assert made[name].token_bytes()[ids].sum() == len(text) + 1


def test_pieces_that_are_not_text_have_no_bytes(made):
    counts = made["fallback"].token_bytes()
    assert counts.dtype == np.float32
    assert counts[:3].tolist() == [0, 0, 0]
    assert counts[3:259].tolist() == [1] * 256  # byte pieces
    text = "日 é"
    assert counts[made["fallback"].encode(text)].sum() == len(text.encode()) + 1
    assert made["fallback"].decode(made["fallback"].encode(text)) == text
    assert made["pieces"].token_bytes()[made["pieces"].encode("日")].sum() == 1  # unknown, after a space
    assert made["unigram"].token_bytes()[:3].tolist() == [0, 0, 0]
    assert made["json"].token_bytes()[made["json"].stop_id] == 0
    words = made["words"]
    assert words.token_bytes()[words.encode("cat cat")].sum() == len(" cat cat")


def test_special_ids(made):
    pairs = made["gpt2"]
    assert pairs.stop_id == made["json"].stop_id == 0
    assert made["pieces"].stop_id == made["unigram"].stop_id == made["fallback"].stop_id == 1
    assert made["words"].decode([made["words"].stop_id]) == "[SEP]"
    assert made["pieces"].size == 60
    assert made["gpt2"].size == made["json"].size == 290
    assert made["gpt2"].encode(ODD) == made["json"].encode(ODD)
    assert all(vocabulary.start_id is None for name, vocabulary in made.items() if name != "bytes3")


@pytest.mark.parametrize("name", NAMES)
def test_any_ids_decode(made, name):
    rng = random.Random(0)
    for _ in range(50):
        assert isinstance(made[name].decode([rng.randrange(made[name].size + 9) for _ in range(12)]), str)
    assert made[name].decode([made[name].size, made[name].size + 5]) == ""
    ids = made[name].encode("é日 the")
    assert all("é日 the".startswith(made[name].decode(ids[:cut]).rstrip("\ufffd")) for cut in range(len(ids))) or (
        name in ("unigram", "words", "pieces")  # which do not know these letters
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1, 3, 8])
def test_streamed_text_is_the_text(made, capsys, name, size):
    """Half characters wait for their rest, spaces in front stay where they are, whatever is drawn."""
    vocabulary, rng = made[name], random.Random(size)
    low = 3 if name in ("fallback", "bytes3") else 0
    for prompt in ("the", " the 日本", ""):
        ids = [rng.randrange(low, vocabulary.size) for _ in range(40)] + vocabulary.encode(" 日本語 cat")
        texts = _Texts(vocabulary, [vocabulary.encode(prompt)], (), streams=True)
        for start in range(0, len(ids), size):
            texts.add(np.array([ids[start : start + size]]))
        whole, count = texts.finish()
        assert count == len(ids)
        assert capsys.readouterr().out == whole + "\n"
        assert whole == vocabulary.decode([*vocabulary.encode(prompt), *ids])


def test_fingerprints_follow_the_content(made, tmp_path):
    names = [name for name in NAMES if name != "folder"]
    assert len({made[name].fingerprint for name in names}) == len(names)
    assert made["folder"].fingerprint == made["json"].fingerprint
    copy = tmp_path / "copy.model"
    shutil.copy(made["pieces"].path, copy)
    assert SentencePieceVocabulary(str(copy)).fingerprint == made["pieces"].fingerprint
    sentence_piece(copy, seed=1)
    assert SentencePieceVocabulary(str(copy)).fingerprint != made["pieces"].fingerprint
    other = byte_pairs(tmp_path / "pairs")
    assert Gpt2Vocabulary(str(other)).fingerprint == made["gpt2"].fingerprint
    lines = (other / "merges.txt").read_text().splitlines()
    (other / "merges.txt").write_text("\n".join(lines[:-1]) + "\n")
    assert Gpt2Vocabulary(str(other)).fingerprint != made["gpt2"].fingerprint
    assert IdVocabulary(size=8).fingerprint != IdVocabulary(size=9).fingerprint
    assert not IdVocabulary(size=8).is_text
    assert IdVocabulary(size=8).encode_batch(["1 2", "7"])[0].tolist() == [1, 2]


@pytest.mark.parametrize("name", NAMES)
def test_a_vocabulary_that_was_used_travels_as_its_name(made, name):
    made[name].encode("the cat")
    packed = pickle.dumps(made[name])
    assert len(packed) < 500
    again = pickle.loads(packed)
    assert again == made[name]
    assert again.encode("the cat") == made[name].encode("the cat")


def test_gpt2_under_openais_names_and_by_file(made, tmp_path):
    folder = byte_pairs(tmp_path / "pairs")
    assert Gpt2Vocabulary(str(folder / "vocab.json")).encode(TEXT) == made["gpt2"].encode(TEXT)
    (folder / "vocab.json").rename(folder / "encoder.json")
    (folder / "merges.txt").rename(folder / "vocab.bpe")
    for path in (folder, folder / "encoder.json"):
        assert Gpt2Vocabulary(str(path)).encode(TEXT) == made["gpt2"].encode(TEXT)


def test_a_folder_that_transformers_reads(made, tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs pip install -e '.[hf]'")
    folder = byte_pairs(tmp_path / "pairs")
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), eos_token="<|endoftext|>", pad_token="<|endoftext|>"
    )
    fast.save_pretrained(str(tmp_path / "saved"))
    saved = HuggingFaceVocabulary(str(tmp_path / "saved"))
    assert saved.encode(ODD) == made["gpt2"].encode(ODD)
    assert (saved.stop_id, saved.size) == (0, 290)


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        (SentencePieceVocabulary(None), "VOCABULARY = sentencepiece needs a file"),
        (SentencePieceVocabulary("no/such.model"), "'no/such.model' cannot be read: No such file or directory"),
        (SentencePieceVocabulary("words.txt"), "'words.txt' is not a SentencePiece model."),
        (SentencePieceVocabulary("empty"), "'empty' is not a SentencePiece model."),
        (HuggingFaceVocabulary(None), "VOCABULARY = huggingface needs a name"),
        (HuggingFaceVocabulary("./no-such"), "'./no-such' cannot be read: no such file or folder."),
        (HuggingFaceVocabulary("words.txt"), "'words.txt' is not a tokenizer that tokenizers"),
        (HuggingFaceVocabulary("empty"), "'empty' is not a tokenizer that tokenizers"),
        (HuggingFaceVocabulary("binary"), "'binary' cannot be read: it is not a text file."),
        (
            HuggingFaceVocabulary("folder"),
            "The folder 'folder' has no tokenizer.json and no other tokenizer files that tran",
        ),
        (Gpt2Vocabulary(None), "VOCABULARY = gpt2 needs its files"),
        (Gpt2Vocabulary("folder"), "'folder' has no merges.txt."),
        (
            Gpt2Vocabulary("no/such"),
            "GPT-2's vocabulary 'no/such' cannot be read: no such folder. Set VOCABULARY_",
        ),
        (Gpt2Vocabulary("folder/vocab.json"), "but 'folder' has no merges.txt."),
        (Gpt2Vocabulary("broken"), "are not in the format of GPT-2's vocabulary: "),
        (Gpt2Vocabulary("endless"), "The vocabulary has 2 tokens, but no <|endoftext|>"),
    ],
    ids=lambda value: None if isinstance(value, str) else f"{type(value).__name__}-{next(iter(vars(value).values()))}",
)
def test_what_is_wrong_with_a_file_is_one_sentence(tmp_path, monkeypatch, vocabulary, message):
    if isinstance(vocabulary, HuggingFaceVocabulary) and vocabulary.name == "folder":
        pytest.importorskip("transformers", reason="needs pip install -e '.[hf]'")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text("the cat")
    (tmp_path / "empty").write_text("")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, vocab in (("folder", "{}"), ("broken", '{"a": 0}'), ("endless", '{"a": 0, "b": 1}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vocab.json").write_text(vocab)
    (tmp_path / "broken" / "merges.txt").write_text("#version: 0.2\na b\n")
    (tmp_path / "endless" / "merges.txt").write_text("")
    for use in (lambda: vocabulary.size, lambda: vocabulary.fingerprint and vocabulary.size):
        with pytest.raises(UsageError) as caught:
            use()
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("package", "name", "message"),
    [("sentencepiece", "pieces", "'.[sentencepiece]'"), ("tokenizers", "json", "'.[hf]'")],
)
def test_a_package_that_is_not_installed(made, monkeypatch, tmp_path, package, name, message):
    monkeypatch.setitem(sys.modules, package, None)
    path = tmp_path / "other"
    if package == "sentencepiece":
        path.write_bytes(b"other content, so that nothing was read before")
        vocabulary = SentencePieceVocabulary(str(path))
    else:
        path.write_text("{}")
        vocabulary = HuggingFaceVocabulary(str(path))
    with pytest.raises(UsageError, match=r"pip install -c constraints\.txt -e") as caught:
        vocabulary.encode("the")
    assert message in str(caught.value)


def test_a_piece_that_is_not_utf8(tmp_path):
    content = sentence_piece(tmp_path / "a.model").read_bytes()
    piece = "\u2581the".encode()
    assert piece in content
    (tmp_path / "a.model").write_bytes(content.replace(piece, b"\xff" + piece[1:]))
    with pytest.raises(UsageError, match=r"a\.model' is not a SentencePiece model"):
        _ = SentencePieceVocabulary(str(tmp_path / "a.model")).size
