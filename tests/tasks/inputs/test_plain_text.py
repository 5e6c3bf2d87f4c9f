"""DATA=text reads UTF-8: packed files are unpacked by their first bytes, other files are refused."""

import bz2
import gzip
import lzma
import os
import stat
import time

import pytest

from layers.errors import UsageError
from tasks.inputs import byte_text
from tasks.inputs.byte_text import TextFile
from tasks.inputs.files.plain_text import plain_text

TEXT = "Ĉu ne? ".encode() * 2000


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "vortaro"


@pytest.mark.parametrize(("name", "pack"), [("a.gz", gzip.compress), ("b", bz2.compress), ("c.txt", lzma.compress)])
def test_packed_text_is_unpacked_whatever_its_name(tmp_path, name, pack):
    (tmp_path / name).write_bytes(pack(TEXT))
    assert TextFile(str(tmp_path / name), (1, 0, 0)).read("train").tobytes() == TEXT
    (tmp_path / name).write_bytes(pack(TEXT[:7000]))
    assert TextFile(str(tmp_path / name), (1, 0, 0)).read("train").tobytes() == TEXT[:7000]


def test_zstandard(tmp_path):
    zstandard = pytest.importorskip("zstandard", reason="needs zstandard: pip install -e '.[hf]'")
    (tmp_path / "text").write_bytes(zstandard.compress(TEXT))
    assert TextFile(str(tmp_path / "text"), (1, 0, 0)).read("train").tobytes() == TEXT


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"abc\0def", "NUL byte at offset 3"),
        (b"ab\xff\xfecd", "byte 0xff at offset 2"),
        (b"PK\x03\x04rest", "is a zip archive. Unpack it first."),
    ],
)
def test_binary_files_are_refused(tmp_path, content, found):
    (tmp_path / "data").write_bytes(content)
    with pytest.raises(UsageError, match=found):
        TextFile(str(tmp_path / "data")).read("train")


def test_a_bad_byte_after_a_chunk_and_a_cut_character(tmp_path, monkeypatch, cache):
    monkeypatch.setattr("tasks.inputs.files.plain_text.CHUNK", 5)
    file = tmp_path / "text"
    file.write_bytes("aaaaé".encode() + b"bcd\xc3(")  # the character spans two chunks
    with pytest.raises(UsageError, match="byte 0xc3 at offset 9"):
        plain_text(str(file), cache)
    file.write_bytes("aaaaéé".encode()[:-1])
    assert plain_text(str(file), cache) == str(file)


def test_cache_files_follow_the_umask():
    before = os.umask(0o022)
    try:
        files = byte_text._standard_library_files.__wrapped__()
    finally:
        os.umask(before)
    assert {stat.S_IMODE(os.stat(file).st_mode) for file in files.values()} == {0o644}


def test_what_a_killed_process_left_is_swept_away(tmp_path, cache):
    (cache / "copies").mkdir(parents=True)
    for name, age in ((".writing-old", 10**6), (".writing-new", 10)):
        (cache / "copies" / name).write_bytes(TEXT)
        os.utime(cache / "copies" / name, (time.time() - age,) * 2)
    (tmp_path / "text.gz").write_bytes(gzip.compress(TEXT))
    copy = plain_text(str(tmp_path / "text.gz"), cache)
    assert {path.name for path in (cache / "copies").iterdir()} == {".writing-new", os.path.basename(copy)}
