"""The token cache: documents are encoded once, parts are complete or absent, splits follow from the content."""

import dataclasses
import json
import os
import resource
import time
from pathlib import Path

import fsspec
import numpy as np
import pytest

from layers.errors import UsageError
from tasks.inputs import part_store
from tasks.inputs.sources.documents import Skipped
from tasks.vocabularies.vocabulary import ByteVocabulary
from tests.support.sources_of import READ, cached

EVERYTHING = (1.0, 0.0, 0.0)


@pytest.fixture(autouse=True)
def unread():
    READ.clear()


def test_documents_follow_each_other_with_their_ends(tmp_path):
    tokens = cached(tmp_path, ("ab", "ü"), ("c",), fractions=EVERYTHING).tokens("train")
    ids = [*b"ab", -2, *"ü".encode(), -2, *b"c", -2]
    assert (tokens.read(0, 100) - 3).tolist() == ids
    assert tokens.document_ends.tolist() == [3, 6, 8]
    assert (len(tokens), tokens.stop_id, tokens.byte_counts) == (8, 1, (5, 5))
    assert (tokens.read(2, 7) - 3).tolist() == ids[2:7]


@pytest.mark.parametrize(
    "content",
    [
        b"\xff",
        b"[" * 100_000,
        b"{}",
        b'{"splits": {"../train": {}}, "skipped": {}}',
        b'{"splits": {"train": {"tokens": -1}}, "skipped": {}}',
        b'{"splits": [], "skipped": {}}',
    ],
)
def test_a_part_with_a_damaged_description_is_built_again(tmp_path, content, capsys):
    assert len(cached(tmp_path, ("ab",), fractions=EVERYTHING).tokens("train")) == 3
    (description,) = tmp_path.rglob("part.json")
    description.write_bytes(content)
    assert len(cached(tmp_path, ("ab",), fractions=EVERYTHING).tokens("train")) == 3
    assert "are damaged" in capsys.readouterr().out


def test_the_cache_is_read_and_not_made_again(tmp_path, capsys):
    first = cached(tmp_path, ("ab",), ("c",), fractions=EVERYTHING)
    assert len(first.tokens("train")) == 5
    assert "Tokenized lists: 2 documents, 5 tokens." in capsys.readouterr().out
    again = cached(tmp_path, ("never",), ("read",), fractions=EVERYTHING)
    assert len(again.tokens("train")) == 5
    assert READ == [0, 1]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "changed",
    [
        {"vocabulary": ByteVocabulary()},
        {"fractions": (0.9, 0.1, 0.0)},
        {"stop_tokens": False},
        {"version": "2"},
        {"splits": True},
    ],
)
def test_all_that_decides_the_ids_is_in_the_key(tmp_path, changed):
    cached(tmp_path, ("ab",), fractions=EVERYTHING).tokens("train")
    cached(tmp_path, ("ab",), **{"fractions": EVERYTHING, **changed}).tokens("train")
    assert READ == [0, 0]


def test_another_part_is_tokenised_alone(tmp_path):
    cached(tmp_path, ("ab",), fractions=EVERYTHING).tokens("train")
    tokens = cached(tmp_path, ("ab",), ("new",), fractions=EVERYTHING).tokens("train")
    assert READ == [0, 1]
    assert len(tokens) == 7


def test_an_interrupted_build_keeps_complete_parts(tmp_path):
    def breaks():
        yield "half"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached(tmp_path, ("ab",), breaks(), fractions=EVERYTHING).tokens("train")
    assert len(list(tmp_path.rglob("part.json"))) == 1
    assert not list(tmp_path.rglob("building-*"))
    tokens = cached(tmp_path, ("never",), ("complete",), fractions=EVERYTHING).tokens("train")
    assert bytes(x for x in tokens.read(0, 99) - 3 if x >= 0) == b"abcomplete"


@pytest.mark.parametrize("file", ["train.ids", "train.ends", "part.json"])
@pytest.mark.parametrize("how", ["cut", "gone"])
def test_damaged_parts_are_rebuilt_with_a_message(tmp_path, capsys, file, how):
    cached(tmp_path, ("abcdef",), ("gh",), fractions=EVERYTHING).tokens("train")
    torn = sorted(tmp_path.rglob(file))[0]
    torn.write_bytes(torn.read_bytes()[:-3]) if how == "cut" else torn.unlink()
    capsys.readouterr()
    tokens = cached(tmp_path, ("abcdef",), ("gh",), fractions=EVERYTHING).tokens("train")
    assert bytes(x for x in tokens.read(0, 99) - 3 if x >= 0) == b"abcdefgh"
    assert len(READ) == 3
    assert "damaged" in capsys.readouterr().out


def test_a_healthy_part_is_never_removed_for_want_of_open_files(tmp_path):
    lists = tuple((f"document {i}",) for i in range(300))
    assert len(cached(tmp_path, *lists, fractions=EVERYTHING).tokens("train").document_ends) == 300
    READ.clear()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = len(os.listdir("/proc/self/fd"))
    part_store._mapping.cache_clear()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 280, hard))
        tokens = cached(tmp_path, *lists, fractions=EVERYTHING).tokens("train")
        assert len(tokens.document_ends) == 300
        assert len(tokens.read(0, 10**5)) == len(tokens)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert READ == []


def test_a_part_that_appears_while_it_is_looked_for_stays(tmp_path, monkeypatch):
    source = cached(tmp_path, ("ab",), fractions=EVERYTHING)
    real, appeared = Path.read_text, []

    def late(self, *arguments, **named):
        if self.name == "part.json" and not appeared:
            appeared.append(True)
            (part,) = source.source.parts(None)
            source._build(dataclasses.replace(part, version="1\nNone"), "train")
            raise FileNotFoundError(str(self))
        return real(self, *arguments, **named)

    monkeypatch.setattr(Path, "read_text", late)
    source.tokens("train")
    assert not list(tmp_path.rglob("removing-*"))
    assert list(tmp_path.rglob("train.ids"))


def test_a_folder_that_cannot_be_read_is_reported_and_kept(tmp_path, monkeypatch):
    source = cached(tmp_path, ("ab",), fractions=EVERYTHING)
    source.tokens("train")

    def refused(self, *arguments, **named):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(UsageError, match="cannot be read: Permission denied"):
        source.tokens("train")
    assert list(tmp_path.rglob("train.ids"))


def test_splits_of_a_source_are_kept_apart(tmp_path):
    both = [cached(tmp_path, ("same part",), splits=True).tokens(split) for split in ("validation", "test", "train")]
    assert [len(tokens) for tokens in both] == [10, 10, 10]


def test_what_a_killed_process_left_is_swept_away_in_time(tmp_path):
    source = cached(tmp_path, ("ab",), fractions=EVERYTHING)
    source.tokens("train")
    folder = next(tmp_path.glob("lists-*"))
    for name, age in (("building-old", 10**6), ("building-new", 10)):
        (folder / name).mkdir()
        (folder / name / "train.ids").write_bytes(b"")
        for path in (folder / name / "train.ids", folder / name):
            os.utime(path, (time.time() - age,) * 2)
    cached(tmp_path, ("ab",), ("cd",), fractions=EVERYTHING).tokens("train")
    assert not (folder / "building-old").exists()
    assert (folder / "building-new").exists()


def test_a_stop_token_within_a_text_is_skipped_and_counted(tmp_path, capsys):
    source = cached(tmp_path, ("ab\0cd", "ef"), fractions=EVERYTHING, vocabulary=ByteVocabulary())
    assert bytes(source.tokens("train").read(0, 9).astype(np.uint8)) == b"ef\0"
    assert "1 for holding the stop token" in capsys.readouterr().out


def test_narrow_ids_of_others_take_any_stop_token(tmp_path):
    class Late(ByteVocabulary):
        @property
        def stop_id(self):
            return 258

    source = cached(tmp_path, (np.array([5, 6], np.int8),), fractions=EVERYTHING, vocabulary=Late(special_tokens=3))
    assert source.tokens("train").read(0, 9).tolist() == [5, 6, 258]


def test_splits_are_disjoint_complete_and_follow_from_the_content_alone(tmp_path):
    documents = tuple(f"document {i}" for i in range(400))
    shares = {"fractions": (0.8, 0.1, 0.1)}
    one = cached(tmp_path / "a", documents, **shares)
    parts = cached(tmp_path / "b", documents[::-3], documents[::-1], **shares)  # other parts, twice, in other order
    texts = lambda source, split: bytes(source.tokens(split).read(0, 10**6).astype(np.uint8)).split(b"\1")[:-1]
    found = {split: texts(one, split) for split in ("train", "validation", "test")}
    assert sum(map(len, found.values())) == 400
    assert len(set.union(*map(set, found.values()))) == 400
    assert 280 < len(found["train"]) < 350
    assert all(20 < len(found[split]) < 65 for split in ("validation", "test"))
    for split, documents in found.items():
        assert set(texts(parts, split)) == set(documents)


def test_skipped_documents_are_counted_and_reported(tmp_path, capsys):
    documents = ("good", Skipped("invalid UTF-8"), Skipped("empty"), Skipped("invalid UTF-8"))
    assert len(cached(tmp_path, documents, fractions=EVERYTHING).tokens("train")) == 5
    assert "Skipped 3 documents: 2 for invalid UTF-8, 1 for empty." in capsys.readouterr().out
    with pytest.raises(UsageError, match=r"lists has no documents. .* Skipped 1 documents: 1 for empty"):
        cached(tmp_path / "none", (Skipped("empty"),)).tokens("train")


def test_ids_of_others_keep_their_end_and_must_be_in_the_vocabulary(tmp_path):
    ids = (np.array([5, 6, 1], np.uint16), np.array([7], np.int64))
    tokens = cached(tmp_path, ids, fractions=EVERYTHING).tokens("train")
    assert tokens.read(0, 9).tolist() == [5, 6, 1, 7, 1]
    with pytest.raises(UsageError, match=r"list 0 None has the token 300, .* tokens 0 to 258. Set the VOCABULARY"):
        cached(tmp_path / "wrong", (np.array([5, 300]),)).tokens("train")
    assert not list((tmp_path / "wrong").rglob("part.json"))


def test_what_the_vocabulary_loses_is_in_the_byte_ratio(tmp_path):
    class Halved(ByteVocabulary):
        def token_bytes(self):
            return super().token_bytes() / 2

    vocabulary = Halved(special_tokens=3)
    assert cached(tmp_path, ("abcd", "ü"), fractions=EVERYTHING, vocabulary=vocabulary).tokens("train").byte_counts == (
        6,
        3,
    )


def test_a_remote_cache_is_made_once_for_all_machines(tmp_path, monkeypatch):
    remote = fsspec.filesystem("memory")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "first"))
    made = cached("memory://bucket/tokens", ("ab",), ("cd",), fractions=EVERYTHING).tokens("train").read(0, 9)
    assert len([path for path in remote.find("/bucket/tokens") if path.endswith("part.json")]) == 2
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "second"))
    copied = cached("memory://bucket/tokens", ("never",), ("read",), fractions=EVERYTHING).tokens("train")
    assert copied.read(0, 9).tolist() == made.tolist()
    assert READ == [0, 1]
    assert any((tmp_path / "second").rglob("train.ids"))
    remote.rm("/bucket", recursive=True)


def test_a_damaged_remote_part_is_rebuilt(tmp_path, monkeypatch, capsys):
    remote = fsspec.filesystem("memory")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "first"))
    cached("memory://bucket/torn", ("ab",), fractions=EVERYTHING).tokens("train")
    (ids,) = [path for path in remote.find("/bucket/torn") if path.endswith("train.ids")]
    remote.pipe(ids, b"\0" * 6)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "second"))
    assert cached("memory://bucket/torn", ("ab",), fractions=EVERYTHING).tokens("train").read(0, 9).tolist() == [
        100,
        101,
        1,
    ]
    assert "damaged" in capsys.readouterr().out
    remote.rm("/bucket", recursive=True)


def test_a_remote_cache_out_of_reach_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(UsageError, match=r"token cache 'ftp://127.0.0.1:1/.*' cannot be reached"):
        cached("ftp://127.0.0.1:1/x", ("ab",), fractions=EVERYTHING).tokens("train")


def test_a_remote_part_that_was_not_finished_is_not_there(tmp_path, monkeypatch):
    remote = fsspec.filesystem("memory")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "first"))
    cached("memory://bucket/half", ("ab",), fractions=EVERYTHING).tokens("train")
    (marker,) = [path for path in remote.find("/bucket/half") if path.endswith("part.json")]
    assert json.loads(remote.cat(marker))["splits"]["train"]["tokens"] == 3
    remote.rm(marker)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "second"))
    assert len(cached("memory://bucket/half", ("ab",), fractions=EVERYTHING).tokens("train")) == 3
    assert READ == [0, 0]
    remote.rm("/bucket", recursive=True)


def test_wide_vocabularies_have_wide_ids(tmp_path):
    class Wide(ByteVocabulary):
        @property
        def size(self):
            return 2**16 + 1

        def token_bytes(self):
            return np.ones(self.size, np.float32)

    tokens = cached(tmp_path, (np.array([65536, 1]),), fractions=EVERYTHING, vocabulary=Wide()).tokens("train")
    assert tokens.read(0, 2).tolist() == [65536, 1]
