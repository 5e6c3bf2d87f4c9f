"""Files by name, pattern, braces and list; packed, far away, cut off and gone."""

import bz2
import gzip
import lzma
import os
from itertools import count

import fsspec
import pytest

from layers.errors import UsageError
from tasks.inputs.files import files
from tasks.inputs.sources.text_files import TextLines

TEXT = b"first\nsecond\r\n\nlast"
LINES = [b"first", b"second", b"", b"last"]
_numbers = count()


@pytest.fixture
def folder(tmp_path):
    for name in ("a.txt", "b.txt", "c-00.txt", "c-01.txt", "odd,{name}[1].txt"):
        (tmp_path / name).write_bytes(TEXT)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "d.txt").write_bytes(TEXT)
    return tmp_path


@pytest.fixture
def remote():
    """A folder that only fsspec knows."""
    system = fsspec.filesystem("memory")
    root = f"/vortaro-{next(_numbers)}"
    for name in ("b.txt", "a.txt", "sub/c.txt"):
        system.pipe_file(f"{root}/{name}", TEXT)
    return f"memory://{root}"


def expand(names, folder):
    return [name.removeprefix(f"{folder}/") for name in files.expand(names, "text")]


def test_names_patterns_braces_commas_and_lists(folder):
    assert expand(f"{folder}/a.txt", folder) == ["a.txt"]
    assert expand(f"{folder}/[ab].txt", folder) == ["a.txt", "b.txt"]
    assert expand(f"{folder}/**/*.txt", folder)[-1] == "sub/d.txt"
    assert expand(f"{folder}/c-{{00..01}}.txt", folder) == ["c-00.txt", "c-01.txt"]
    assert expand(f"{folder}/c-{{01..00}}.txt", folder) == ["c-01.txt", "c-00.txt"]
    assert expand(f"{folder}/{{b,a}}.txt,{folder}/c-*.txt", folder) == ["b.txt", "a.txt", "c-00.txt", "c-01.txt"]
    assert expand([f"{folder}/b.txt", f"{folder}/?.txt"], folder) == ["b.txt", "a.txt"], "each file once"
    assert expand(f"{folder}/odd,{{name}}[1].txt", folder) == ["odd,{name}[1].txt"], "a file that is called so"
    (folder / "list").write_text(f"# shards\n{folder}/b.txt  # one\n\n{folder}/c-*.txt\n")
    assert expand(f"@{folder}/list", folder) == ["b.txt", "c-00.txt", "c-01.txt"]


def test_a_file_of_several_names_is_read_once(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "link.txt").symlink_to(folder / "a.txt")
    (folder / "again").symlink_to(folder, target_is_directory=True)
    assert files.expand("a.txt,./a.txt,sub/../a.txt", "text") == ["a.txt"], "as it was written first"
    assert files.expand(["./a.txt", f"{folder}/a.txt", "again/a.txt", "file://" + str(folder / "a.txt")], "text") == [
        "./a.txt"
    ]
    assert files.expand("[ab].txt,link.txt,again/*.txt", "text")[:2] == ["a.txt", "b.txt"]
    assert "link.txt" not in files.expand("*.txt", "text")


def test_each_file_is_looked_at_once(folder, monkeypatch):
    """Over a network each look is a request."""
    looks = []
    for name in ("stat", "lstat"):
        look = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda path, *a, look=look, **k: (looks.append(str(path)), look(path, *a, **k))[1]
        )
    held = TextLines(files=f"{folder}/c-*.txt", validation_files=f"{folder}/{{a,b}}.txt", test_files=f"{folder}/sub/*")
    for split in ("train", "validation"):
        looks.clear()
        held.parts(split)
        seen = [path for path in looks if path.endswith("c-00.txt")]
        assert seen == [f"{folder}/c-00.txt"]
        assert len([path for path in looks if path.endswith("/a.txt")]) <= 2, "a name may be a pattern or a file"


def test_a_listing_has_remote_files(remote, monkeypatch):
    system = fsspec.filesystem("memory")
    asked = []
    info, pattern = type(system).info, type(system).glob
    tagged = lambda found: {name: {**entry, "ETag": "7"} for name, entry in found.items()}
    monkeypatch.setattr(type(system), "glob", lambda self, *a, **k: tagged(pattern(self, *a, **k)))
    monkeypatch.setattr(type(system), "info", lambda self, path, **k: (asked.append(path), info(self, path, **k))[1])
    parts = TextLines(files=f"{remote}/*.txt").parts(None)
    assert [part.version for part in parts] == [f"{len(TEXT)} 7 text lines"] * 2
    assert not [path for path in asked if path.endswith(".txt")]


def test_a_copy_is_the_same_and_another_file_is_not(tmp_path):
    """Tools that copy keep times: to the second, where files come out of an archive."""
    middle = bytes(files.END_BYTES * 3)
    path, copy = tmp_path / "a.txt", tmp_path / "b.txt"
    versions = set()
    for content in (
        b"one",
        b"two",
        b"head" + middle,
        middle + b"tail",
        middle + b"cow!",
        middle[:-9] + b"else" + b"tail",
    ):
        for place in (path, copy):
            place.write_bytes(content)
            os.utime(place, ns=(10**18, 10**18))
        assert files.version(str(path)) == files.version(str(copy))
        versions.add(files.version(str(path)))
    assert len(versions) == 6


def test_a_pipe_is_not_read_for_its_version(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert files.expand(str(tmp_path / "pipe"), "text")
    assert files.version(str(tmp_path / "pipe"))


def test_names_of_no_file(folder):
    with pytest.raises(UsageError, match=r"file '.*/a.tx' does not exist. Did you mean 'a.txt'\?"):
        files.expand(f"{folder}/a.tx", "text")
    with pytest.raises(UsageError, match=r"matches no file of text"):
        files.expand(f"{folder}/*.json", "text")
    with pytest.raises(UsageError, match=r"is a folder, .* Use '.*/sub/\*'"):
        files.expand(f"{folder}/sub/", "text")
    with pytest.raises(UsageError, match=r"No files of text are named"):
        files.expand([], "text")
    with pytest.raises(UsageError, match=r"file '.*/lst' does not exist"):
        files.expand(f"@{folder}/lst", "text")
    (folder / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"is not text"):
        files.expand(f"@{folder}/bytes", "text")
    with pytest.raises(UsageError, match=r"'nowhere://a.txt' cannot be read: Protocol not known"):
        files.expand("nowhere://a.txt", "text")


def test_files_that_only_fsspec_knows(remote):
    assert expand(f"{remote}/*.txt", remote) == ["a.txt", "b.txt"]
    assert expand(f"{remote}/{{b,a}}.txt", remote) == ["b.txt", "a.txt"]
    assert list(files.lines(f"{remote}/a.txt")) == LINES
    before = files.version(f"{remote}/a.txt")
    assert files.version(f"{remote}/a.txt") == before
    fsspec.filesystem("memory").pipe_file(f"{remote.removeprefix('memory://')}/a.txt", TEXT.swapcase())
    assert files.version(f"{remote}/a.txt") != before
    with pytest.raises(UsageError, match=r"file 'memory://.*' does not exist"):
        files.expand(f"{remote}/x.txt", "text")
    with pytest.raises(UsageError, match=r"is a folder"):
        files.expand(f"{remote}/sub", "text")
    with pytest.raises(UsageError, match=r"matches no file"):
        files.expand(f"{remote}/*.json", "text")
    fsspec.filesystem("memory").pipe_file(f"{remote.removeprefix('memory://')}/list", f"{remote}/b.txt\n".encode())
    assert expand(f"@{remote}/list", remote) == ["b.txt"]


def test_a_servers_error_is_one_sentence(remote, monkeypatch):
    def refuses(*_, **__):
        raise Exception("no credentials\nfor you")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "info", refuses)
    with pytest.raises(UsageError, match=r"a.txt' cannot be read: no credentials\.$"):
        files.expand(f"{remote}/a.txt", "text")


def zstd(text):
    zstandard = pytest.importorskip("zstandard", reason="needs zstandard: pip install zstandard")
    # Two frames, as parallel packers write them.
    return zstandard.compress(text[:9]) + zstandard.compress(text[9:])


@pytest.mark.parametrize(
    ("suffix", "pack"),
    [(".gz", gzip.compress), (".tgz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress), (".zst", zstd)],
)
def test_packed_files_and_what_is_left_of_them(tmp_path, suffix, pack):
    path = tmp_path / f"text{suffix}"
    path.write_bytes(pack(TEXT))
    assert list(files.lines(str(path))) == LINES
    assert files.whole(str(path)) == TEXT
    assert files.size(str(path)) == len(TEXT)
    path.write_bytes(pack(TEXT)[:-3])
    with pytest.raises(UsageError, match=rf"'.*text{suffix}' is damaged or cut off: "):
        list(files.lines(str(path)))
    path.write_bytes(b"plain text in a file with a compressed name")
    with pytest.raises(UsageError, match=rf"'.*text{suffix}' (is damaged|cannot be read)"):
        list(files.lines(str(path)))


def test_a_large_zstandard_file(tmp_path):
    text = b"".join(b"%d\n" % i for i in range(300_000))
    (tmp_path / "t.zst").write_bytes(zstd(text))
    assert files.whole(str(tmp_path / "t.zst")) == text


def test_empty_and_vanished_files_and_byte_order_marks(tmp_path):
    path = tmp_path / "t.txt"
    path.write_bytes(b"")
    with pytest.raises(UsageError, match=r"t.txt' is empty"):
        list(files.lines(str(path)))
    path.write_bytes(files.BYTE_ORDER_MARK + b"a\nb")
    assert list(files.lines(str(path))) == [b"a", b"b"]
    before = files.version(str(path))
    path.write_bytes(b"another")
    assert files.version(str(path)) != before
    path.unlink()
    with pytest.raises(UsageError, match=r"file '.*t.txt' does not exist"):
        list(files.lines(str(path)))
