"""Tar shards as webdataset writes them, complete and cut off; rows of ids that torch saved, read without torch."""

import contextlib
import gzip
import io
import json
import os
import pickle
import sys
import tarfile
import zipfile
from pathlib import Path

import fsspec
import numpy as np
import pytest

from layers.errors import UsageError
from tasks.inputs.files.torch_tensors import load_row
from tasks.inputs.sources.documents import Skipped
from tasks.inputs.sources.webdataset_shards import WebDatasetShards

webdataset = pytest.importorskip("webdataset", reason="needs webdataset: pip install -e '.[webdataset]'")
DATA = Path(__file__).parents[1] / "data"  # made by torch 2.15


def read(source, split=None):
    """All documents, through a pickle: parts are read by other processes."""
    return [document for part in source.parts(split) for document in pickle.loads(pickle.dumps(part)).read()]


def saved(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def write(path, *samples):
    with webdataset.TarWriter(str(path)) as writer:
        for i, sample in enumerate(samples):
            writer.write({"__key__": f"{i:04}", **sample})
    return str(path)


def texts(path, *values):
    return write(path, *({"txt": value} for value in values))


def test_text_in_order_one_part_a_shard(tmp_path):
    for i in range(12):
        texts(tmp_path / f"s-{i:02}.tar", f"{i} a", f"{i} b")
    source = WebDatasetShards(shards=f"{tmp_path}/s-{{00..11}}.tar")
    assert not source.has_splits
    assert [part.name for part in source.parts(None)] == [f"{tmp_path}/s-{i:02}.tar" for i in range(12)]
    assert read(source) == [f"{i} {x}" for i in range(12) for x in "ab"]
    assert read(WebDatasetShards(shards=f"{tmp_path}/s-*.tar")) == read(source)
    (tmp_path / "index").write_text(f"{tmp_path}/s-03.tar\n{tmp_path}/s-01.tar\n")
    (tmp_path / "held").write_text(f"{tmp_path}/s-00.tar\n")
    indexed = WebDatasetShards(shards=f"@{tmp_path}/index", validation_shards=f"@{tmp_path}/held")
    assert read(indexed, "train") == ["3 a", "3 b", "1 a", "1 b"]
    assert read(indexed, "validation") == ["0 a", "0 b"]
    with pytest.raises(UsageError, match=r"test split has no files"):
        indexed.parts("test")


def test_members_of_other_kinds(tmp_path):
    row = (DATA / "int64.pth").read_bytes()
    good = {"txt": "é", "input_id.pth": row, "npy": saved(np.arange(3, dtype=np.uint16)), "json": {"text": "j", "n": 1}}
    bad = {
        "txt": b"\xff",
        "input_id.pth": (DATA / "float_matrix.pth").read_bytes(),
        "npy": saved(np.eye(2)),
        "json": b"{",
    }
    worse = {"input_id.pth": row[:-9], "npy": saved(np.arange(3))[:-1], "json": {"n": 1}}
    path = write(tmp_path / "s.tar", good, bad, worse)
    assert read(WebDatasetShards(shards=path)) == ["é", Skipped("invalid UTF-8"), Skipped("no .txt member")]
    rows = read(WebDatasetShards(shards=path, member="input_id.pth"))
    assert rows[0].tolist() == [50256, 5, 70000]
    assert rows[1:] == [Skipped("a tensor that is not of integers"), Skipped("a damaged torch file")]
    arrays = read(WebDatasetShards(shards=path, member=".NPY"))
    assert arrays[0].tolist() == [0, 1, 2]
    assert arrays[1:] == [Skipped("neither text nor a row of token ids"), Skipped("a damaged .npy file")]
    objects = WebDatasetShards(shards=path, member="json")
    assert read(objects) == ["j", Skipped("broken JSON"), Skipped("no such column")]
    versions = {WebDatasetShards(shards=path, member=m).parts(None)[0].version for m in ("txt", "json", "npy")}
    assert len(versions) == 3
    with pytest.raises(UsageError, match=r".json of '0000' in '.*s.tar' has no column 'txt', only 'text', 'n'"):
        read(WebDatasetShards(shards=path, member="json", column="txt"))
    with pytest.raises(UsageError, match=r"None of the 3 samples in .* has a .jsn member. Did you mean 'json'"):
        read(WebDatasetShards(shards=path, member="jsn"))


def test_packed_and_far_away(tmp_path):
    content = Path(texts(tmp_path / "s.tar", "a", "b")).read_bytes()
    for suffix in (".tar.gz", ".tgz"):
        (tmp_path / f"p{suffix}").write_bytes(gzip.compress(content))
        assert read(WebDatasetShards(shards=str(tmp_path / f"p{suffix}"))) == ["a", "b"]
    fsspec.filesystem("memory").pipe_file("/shards/s.tar", content)
    assert read(WebDatasetShards(shards="memory:///shards/*.tar")) == ["a", "b"]
    (tmp_path / "p.tar.gz").write_bytes(gzip.compress(content)[:-20])
    with pytest.raises(UsageError, match=r"p.tar.gz' is cut off or damaged"):
        read(WebDatasetShards(shards=str(tmp_path / "p.tar.gz")))


def test_a_shard_that_is_cut_off_anywhere_is_reported(tmp_path):
    path = Path(texts(tmp_path / "s.tar", *(f"{i}" * 700 for i in range(4))))
    content = path.read_bytes()
    with tarfile.open(path) as archive:
        size = archive.getmembers()[1].offset  # of headers and 700 bytes in blocks
    for cut, whole in [
        (0, 0),
        (100, 0),
        (size, 0),
        (2 * size - 600, 0),
        (2 * size, 1),
        (2 * size + 9, 1),
        (4 * size, 3),
    ]:
        path.write_bytes(content[:cut])
        with pytest.raises(UsageError, match=rf"s.tar' is cut off or damaged after {whole} samples \("):
            read(WebDatasetShards(shards=str(path)))
    path.write_bytes(content[: 2 * size] + b"x" * 512 + content[2 * size + 512 :])
    with pytest.raises(UsageError, match=r"damaged after 1 samples \(.* at byte [0-9,]+\)"):
        read(WebDatasetShards(shards=str(path)))
    path.write_bytes(content)
    part = WebDatasetShards(shards=str(path)).parts(None)[0]
    path.unlink()
    with pytest.raises(UsageError, match=r"file '.*s.tar' does not exist"):
        list(part.read())
    write(path)
    with pytest.raises(UsageError, match=r"s.tar' has no samples"):
        read(WebDatasetShards(shards=str(path)))
    with tarfile.open(path, "w") as archive:
        for _ in range(2):
            archive.addfile(tarfile.TarInfo("a.txt"))
    with pytest.raises(UsageError, match=r"is not a webdataset: a.txt: duplicate file name"):
        read(WebDatasetShards(shards=str(path)))


def test_rows_that_torch_saved():
    expected = {
        "int64": (np.int64, [50256, 5, 70000]),
        "int16_strided": (np.int16, [1, 3, 5]),
        "uint16": (np.uint16, [1, 65535]),
        "int32_legacy": (np.int32, [3, 1, 2]),
    }
    for name, (dtype, values) in expected.items():
        row = load_row((DATA / f"{name}.pth").read_bytes())
        assert (row.dtype, row.tolist()) == (dtype, values)
    for name in ("int64", "int32_legacy"):
        content = (DATA / f"{name}.pth").read_bytes()
        for cut in (0, 3, 60, len(content) - 8):
            with pytest.raises(ValueError, match="a damaged torch file"):
                load_row(content[:cut])


class _Harm:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_no_code_in_a_pickle_is_run(tmp_path):
    """A pickle that would make a folder; one that would rebind its names."""
    changes = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n}X\x08\x00\x00\x00__call__K\x01sb."
    reaches = b"\x80\x02ctorch\nLongStorage\n}X\x01\x00\x00\x00aK\x01sb."
    beyond = (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(X\x07\x00\x00\x00storage"
        b"ctorch\nLongStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x03tQK\x00M\x00\x10\x85K\x01\x85\x89}tR."
    )
    beyond = beyond.replace(b"(X\x07", b"((X\x07")
    harm = pickle.dumps(_Harm(str(tmp_path / "made")), protocol=2)
    for code in (harm, changes, reaches, beyond):
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr("a/data.pkl", code)
            archive.writestr("a/data/0", bytes(24))
        for content in (stream.getvalue(), code):
            with pytest.raises(ValueError, match=r"something other|damaged|not a torch file|beyond its storage"):
                load_row(content)
    assert not (tmp_path / "made").exists()
    assert load_row((DATA / "int64.pth").read_bytes()).tolist() == [50256, 5, 70000]


def test_without_the_library_the_extra_is_named(tmp_path, monkeypatch):
    path = texts(tmp_path / "s.tar", "a")
    monkeypatch.setitem(sys.modules, "webdataset.tariterators", None)
    with pytest.raises(UsageError, match=r"pip install 'vortaro\[webdataset\]'"):
        read(WebDatasetShards(shards=path))


def test_names_that_are_not_samples_and_groups_by_the_first_dot(tmp_path):
    path = tmp_path / "s.tar"
    with tarfile.open(path, "w") as archive:
        for name in ("__index__/x.txt", "README", "dir/a.b.txt", "dir/a.json", "dir/c.txt"):
            content = json.dumps({"text": name}).encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    source = WebDatasetShards(shards=str(path), member="b.txt")
    assert read(source) == ['{"text": "dir/a.b.txt"}', Skipped("no .b.txt member")]
    assert read(WebDatasetShards(shards=str(path), member="json"))[0] == "dir/a.json"


NAMES = ("../outside.txt", "/tmp/outside-of-shards.txt", "a/../../outside.txt", "..", "link.txt")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_nothing_is_written_whatever_a_member_is_named_or_linked_to(tmp_path, name, kind):
    (tmp_path / "inside").mkdir()
    (tmp_path / "secret").write_text("secret")
    path = tmp_path / "inside" / "s.tar"
    with tarfile.open(path, "w") as archive:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname, entry.size = kind, "../secret", 4 if kind == tarfile.REGTYPE else 0
        archive.addfile(entry, io.BytesIO(b"text"))
    before = sorted(tmp_path.rglob("*"))
    documents = []
    with contextlib.suppress(UsageError):  # no sample, or none with text
        documents = read(WebDatasetShards(shards=str(path)))
    assert "secret" not in documents, "links are not followed"
    assert sorted(tmp_path.rglob("*")) == before
    assert not Path("/tmp/outside-of-shards.txt").exists()


def test_arrays_larger_than_memory_and_archives_of_numpy_are_skipped(tmp_path):
    head = b"{'descr': '<i8', 'fortran_order': False, 'shape': (4000000000000000,), }"
    large = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + bytes(64)
    archive = io.BytesIO()
    np.savez(archive, np.arange(3))
    path = write(tmp_path / "s.tar", {"npy": large}, {"npy": archive.getvalue()}, {"npy": saved(np.arange(3))})
    *skipped, ids = read(WebDatasetShards(shards=path, member="npy"))
    assert skipped == [Skipped("a damaged .npy file")] * 2
    assert ids.tolist() == [0, 1, 2]
