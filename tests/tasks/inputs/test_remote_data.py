"""Data on object stores give the rows that the same files give on disk."""

import io
import json
import tarfile
from pathlib import Path

import fsspec
import numpy as np
import pytest

from layers.errors import UsageError
from tasks.inputs.byte_text import ByteText
from tasks.vocabularies.subwords import SentencePieceVocabulary
from tests.support import stores
from tests.support.references.models import batch_of

pytestmark = pytest.mark.slow

TEXTS = [f"document {number} is {'so ' * (number % 7)}" for number in range(40)]


@pytest.fixture(scope="module", params=["gs", "s3"])
def bucket(request):
    with stores.standing(request.param) as name:
        yield name


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    """A folder of text, lines, JSON lines and tar shards."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "all.txt").write_text("\n".join(TEXTS * 20))
    (folder / "some.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    for shard in range(2):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for number, text in enumerate(TEXTS[shard::2]):
                member = tarfile.TarInfo(f"{shard}-{number}.txt")
                member.size = len(text)
                tar.addfile(member, io.BytesIO(text.encode()))
    return folder


@pytest.fixture
def store(bucket, disk, tmp_path, monkeypatch):
    """The same folder on the store; nothing is cached on this machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    system, root = fsspec.core.url_to_fs(f"{bucket}/data")
    for file in disk.iterdir():
        system.put_file(str(file), f"{root}/{file.name}")
    return f"{bucket}/data"


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("text", "all.txt"),
        ("lines", "all.txt"),
        ("jsonl", "some.jsonl"),
        ("jsonl", "*.jsonl"),
        ("webdataset", "{0..1}.tar"),
    ],
)
def test_rows_are_those_of_files_on_disk(store, disk, kind, names):
    packed = {} if kind == "text" else {"ROWS": "pack"}
    here, there = (
        batch_of(1, DATA=kind, DATA_PATH=f"{folder}/{names}", VOCAB_SIZE=256, **packed) for folder in (disk, store)
    )
    assert np.any(here.inputs)
    np.testing.assert_array_equal(here.inputs, there.inputs)
    np.testing.assert_array_equal(here.targets, there.targets)


def test_text_is_copied_once_for_each_version_and_mapped(store, tmp_path):
    source = ByteText(path=f"{store}/all.txt", fractions=(1, 0, 0))
    assert isinstance(source.text.read("train"), np.memmap)
    (copy,) = (tmp_path / "cache").rglob("*-all.txt")
    time = copy.stat().st_mtime_ns
    source.text.read("train")
    assert copy.stat().st_mtime_ns == time
    system, path = fsspec.core.url_to_fs(f"{store}/all.txt")
    system.pipe_file(path, b"other")
    assert source.text.read("train").tobytes() == b"other"


def test_text_that_is_missing_or_empty(store):
    with pytest.raises(UsageError, match=f"The file '{store}/none.txt' does not exist"):
        ByteText(path=f"{store}/none.txt").text.read("train")
    system, path = fsspec.core.url_to_fs(f"{store}/empty.txt")
    system.pipe_file(path, b"")
    with pytest.raises(UsageError, match=r"empty.txt' is empty"):
        ByteText(path=f"{store}/empty.txt").text.read("train")


def test_a_vocabulary_on_a_store(bucket, tmp_path):
    pytest.importorskip("sentencepiece")
    from tests.support import vocabularies

    model = vocabularies.sentence_piece(tmp_path / "small.model")
    system, path = fsspec.core.url_to_fs(f"{bucket}/small.model")
    system.put_file(str(model), path)
    here, there = SentencePieceVocabulary(str(model)), SentencePieceVocabulary(f"{bucket}/small.model")
    assert here.fingerprint == there.fingerprint
    assert there.encode("the cat sat") == here.encode("the cat sat")
    with pytest.raises(UsageError, match=r"none.model' cannot be read"):
        _ = SentencePieceVocabulary(f"{bucket}/none.model").fingerprint


def test_a_token_cache_on_a_store(store, bucket, tmp_path, monkeypatch):
    read = {"DATA": "jsonl", "DATA_PATH": f"{store}/some.jsonl", "ROWS": "pack", "VOCAB_SIZE": 256}
    made = batch_of(0, CACHE_DIR=f"{bucket}/tokens", **read)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "second"))
    copied = batch_of(0, CACHE_DIR=f"{bucket}/tokens", **read)
    np.testing.assert_array_equal(made.inputs, copied.inputs)
    assert any(Path(tmp_path, "second").rglob("train.ids"))
