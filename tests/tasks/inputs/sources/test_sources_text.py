"""Lines, files and JSON lines as documents."""

import gzip
import pickle

import pytest

from layers.errors import UsageError
from tasks.inputs.sources import text_files
from tasks.inputs.sources.documents import Skipped
from tasks.inputs.sources.text_files import JsonLines, TextFiles, TextLines


def read(source, split=None):
    """All documents, through a pickle: parts are read by other processes."""
    return [document for part in source.parts(split) for document in pickle.loads(pickle.dumps(part)).read()]


def write(folder, **texts):
    for name, text in texts.items():
        (folder / name).write_bytes(text)
    return str(folder / "*")


def test_lines(tmp_path):
    source = TextLines(files=write(tmp_path, b="dé\n\nf".encode(), a=b"one\r\n\xff\ntwo\n"))
    assert not source.has_splits
    assert [part.name for part in source.parts(None)] == [f"{tmp_path}/a", f"{tmp_path}/b"]
    assert read(source) == ["one", Skipped("invalid UTF-8"), "two", "dé", Skipped("empty"), "f"]
    assert source.describe() == f"text lines in '{tmp_path}/*'"
    assert TextLines(files=tuple("abcd")).describe() == "text lines in 'a', 'b' and 2 more"
    with pytest.raises(UsageError, match=r"no splits of its own"):
        source.parts("train")
    write(tmp_path, b=b"")
    with pytest.raises(UsageError, match=r"b' is empty"):
        read(source)


def test_files_as_documents_in_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "FILES_PER_PART", 2)
    source = TextFiles(files=write(tmp_path, a=b"x = 1\n", b=b"", c=b"\xff", d=b"\xef\xbb\xbfd", e=b"e"))
    assert read(source) == ["x = 1\n", Skipped("empty"), Skipped("invalid UTF-8"), "d", "e"]
    parts = source.parts(None)
    assert [part.name for part in parts] == [f"{tmp_path}/a and 1 more", f"{tmp_path}/c and 1 more", f"{tmp_path}/e"]
    write(tmp_path, d=b"other")
    changed = [old.version != new.version for old, new in zip(parts, source.parts(None), strict=True)]
    assert changed == [False, True, False]
    (tmp_path / "d").unlink()
    with pytest.raises(UsageError, match=r"file '.*/d' does not exist"):
        list(parts[1].read())


def test_json_lines(tmp_path):
    good = b'{"text": "one", "ids": [1, 2]}\n'
    odd = b'{"text": null}\n{"tex": 1}\n[1]\n{"te\n\n\xff\n{"text": 3}\n{"text": "\\ud800"}\n{"text": ""}\n'
    write(tmp_path, a=good + odd + b'{"text": [1, 2]}')
    found = read(JsonLines(files=f"{tmp_path}/a"))
    assert found[:-1] == [
        "one",
        Skipped("null"),
        Skipped("no such column"),
        Skipped("JSON that is not an object"),
        Skipped("broken JSON"),
        Skipped("empty"),
        Skipped("invalid UTF-8"),
        Skipped("neither text nor a row of token ids"),
        Skipped("invalid UTF-8"),
        Skipped("empty"),
    ]
    assert found[-1].tolist() == [1, 2]
    ids = JsonLines(files=f"{tmp_path}/a", column="ids")
    assert read(ids)[0].tolist() == [1, 2]
    assert ids.parts(None)[0].version != JsonLines(files=f"{tmp_path}/a").parts(None)[0].version
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(good * 2))
    assert read(JsonLines(files=f"{tmp_path}/*.gz")) == ["one", "one"]
    with pytest.raises(UsageError, match=r"first object in '.*a' has no column 'txt', only 'text', 'ids'. .*'text'"):
        read(JsonLines(files=f"{tmp_path}/a", column="txt"))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(good * 2)[:-2])
    with pytest.raises(UsageError, match=r"b.jsonl.gz' is damaged or cut off"):
        read(JsonLines(files=f"{tmp_path}/*.gz"))
    write(tmp_path, c=b'[\n{"text": "a"},\n"b"]\n')
    with pytest.raises(UsageError, match=r"No line of '.*c' is a JSON object"):
        read(JsonLines(files=f"{tmp_path}/c"))


def test_files_to_validate_and_test_on(tmp_path):
    write(tmp_path, a=b"train", v=b"validate", t=b"test")
    at = lambda name: f"{tmp_path}/{name}"
    source = TextLines(files=at("a"), validation_files=at("v"), test_files=at("t"))
    assert source.has_splits
    assert [read(source, split) for split in ("train", "validation", "test")] == [["train"], ["validate"], ["test"]]
    with pytest.raises(UsageError, match=r"one of train, validation, test must be named"):
        source.parts(None)
    with pytest.raises(UsageError, match=r"Unknown split 'val'"):
        source.parts("val")
    one = TextLines(files=at("a"), validation_files=at("v"))
    with pytest.raises(UsageError, match=r"test split has no files: .* names only train files and validation files"):
        one.parts("test")
    both = TextLines(files=at("*"), validation_files=at("v"))
    with pytest.raises(UsageError, match=r"'.*/v' is named to train on and for the validation split"):
        both.parts("validation")


def test_training_text_by_another_name_does_not_validate(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, a=b"train", v=b"validate")
    (tmp_path / "link").symlink_to("a")
    for name in ("./a", str(tmp_path / "a"), "link", f"../{tmp_path.name}/a"):
        source = TextLines(files="a", validation_files=name)
        for split in ("train", "validation"):
            with pytest.raises(
                UsageError, match=r"'a' is named to train on and as '.*(a|link)' for the validation split"
            ):
                source.parts(split)
    assert read(TextLines(files="a", validation_files="./v"), "validation") == ["validate"]
