"""Files of token ids: numpy, nanoGPT's, llm.c's, Megatron's."""

import struct

import numpy as np
import pytest

from layers.errors import UsageError
from tasks.inputs.token_ids.pretokenized import TokenFiles

WHOLE = (1.0, 0.0, 0.0)


def megatron(folder, name, documents, code=8, dtype=np.uint16):
    """What Megatron's builder writes for documents of several sequences each."""
    sequences = [row for document in documents for row in document]
    sizes = np.array([len(row) for row in sequences], np.int32)
    pointers = (np.cumsum(sizes, dtype=np.int64) - sizes) * np.dtype(dtype).itemsize
    starts = np.cumsum([0, *(len(document) for document in documents)], dtype=np.int64)
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(sizes), len(starts))
    (folder / f"{name}.idx").write_bytes(head + sizes.tobytes() + pointers.tobytes() + starts.tobytes())
    (folder / f"{name}.bin").write_bytes(np.concatenate([np.array(row, dtype) for row in sequences]).tobytes())
    return str(folder / f"{name}.bin")


def llm_c(ids, magic=20240520, dtype=np.uint16):
    header = np.zeros(256, np.int32)
    header[:3] = magic, 1, len(ids)
    return header.tobytes() + np.array(ids, dtype).tobytes()


def only(path, **fields):
    (tokens,) = TokenFiles(files=str(path), fractions=WHOLE, **fields).arrays("train")
    return tokens


def test_files_without_documents(tmp_path):
    np.save(tmp_path / "a.npy", np.array([1, 2, 70000], np.int32))
    tokens = only(tmp_path / "a.npy")
    assert (tokens.ids.tolist(), tokens.ids.dtype, tokens.ends) == ([1, 2, 70000], np.int32, None)
    assert isinstance(tokens.ids, np.memmap)
    np.array([3, 50256], np.uint16).tofile(tmp_path / "nano.bin")
    assert only(tmp_path / "nano.bin").ids.tolist() == [3, 50256]
    np.array([3, 70000], np.uint32).tofile(tmp_path / "wide.bin")
    assert only(tmp_path / "wide.bin", dtype="uint32").ids.tolist() == [3, 70000]
    (tmp_path / "llm.bin").write_bytes(llm_c([5, 6]))
    assert only(tmp_path / "llm.bin").ids.tolist() == [5, 6]
    (tmp_path / "llama.bin").write_bytes(llm_c([5, 128000], magic=20240801, dtype=np.uint32))
    assert only(tmp_path / "llama.bin").ids.tolist() == [5, 128000]


def test_documents_of_megatron(tmp_path):
    path = megatron(tmp_path, "m", [[[1, 2], [3]], [], [[4]], [[5, 6]]])
    for name in (path, str(tmp_path / "m.idx"), str(tmp_path / "m.*")):
        tokens = only(name)
        assert tokens.ids.tolist() == [1, 2, 3, 4, 5, 6]
        assert tokens.ends is not None
        assert tokens.ends.tolist() == [3, 4, 6]
    megatron(tmp_path, "wide", [[[70000]]], code=4, dtype=np.int32)
    assert only(tmp_path / "wide.bin").ids.tolist() == [70000]


def test_a_set_is_cut_in_order(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(6))
    np.save(tmp_path / "b.npy", np.arange(6, 10))
    source = TokenFiles(files=str(tmp_path / "?.npy"), fractions=(0.7, 0.2, 0.1))
    found = {split: [t.ids.tolist() for t in source.arrays(split)] for split in ("train", "validation", "test")}
    assert found == {"train": [[0, 1, 2, 3, 4, 5], [6]], "validation": [[7, 8]], "test": [[9]]}
    before = source.version()
    np.save(tmp_path / "b.npy", np.arange(7, 11))
    assert source.version() != before
    with pytest.raises(UsageError, match=r"test split, 0% of token ids .* has no ids"):
        TokenFiles(files=source.files, fractions=WHOLE).arrays("test")
    with pytest.raises(UsageError, match=r"must be three numbers"):
        TokenFiles(files=source.files, fractions=(0.5, 0.1, 0.1)).arrays("test")
    with pytest.raises(UsageError, match=r"Unknown split 'val'"):
        source.arrays("val")


def test_documents_stay_complete_at_cuts_of_a_set(tmp_path):
    path = megatron(tmp_path, "m", [[[1, 2, 3]], [[4]], [[5, 6, 7]], [[8, 9, 10]]])
    source = TokenFiles(files=path, fractions=(0.35, 0.3, 0.35))  # at 4 and 6: the second cut moves to 7
    found = {}
    for split in ("train", "validation", "test"):
        (tokens,) = source.arrays(split)
        assert tokens.ends is not None
        found[split] = (tokens.ids.tolist(), tokens.ends.tolist())
    assert found == {"train": ([1, 2, 3, 4], [3, 4]), "validation": ([5, 6, 7], [3]), "test": ([8, 9, 10], [3])}


def test_official_splits(tmp_path):
    for split in ("train", "val"):
        np.array([len(split)], np.uint16).tofile(tmp_path / f"{split}.bin")
    source = TokenFiles(files=str(tmp_path / "train.bin"), validation_files=str(tmp_path / "val.bin"))
    assert source.arrays("train")[0].ids.tolist() == [5]
    assert source.arrays("validation")[0].ids.tolist() == [3]
    with pytest.raises(UsageError, match=r"test split of token ids .* has no files. Set TEST_PATH"):
        source.arrays("test")
    both = TokenFiles(files=str(tmp_path / "*.bin"), validation_files=str(tmp_path / "val.bin"))
    with pytest.raises(UsageError, match=r"'.*val.bin' is named to train on and for the validation split"):
        both.arrays("train")


def test_ids_by_another_name_do_not_validate(tmp_path, monkeypatch):
    path = megatron(tmp_path, "m", [[[1, 2, 3]], [[4]]])
    monkeypatch.chdir(tmp_path)
    for name in ("./m.bin", "m.bin", path):
        with pytest.raises(UsageError, match=r"m.bin' is named to train on .*for the validation split"):
            TokenFiles(files="m.idx", validation_files=name).arrays("train")
    assert len(TokenFiles(files=f"m.bin,./m.idx,{path}", fractions=WHOLE).arrays("train")) == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.bin", b"", "'.*a.bin' is empty"),
        ("a.bin", b"abc", r"has 3 bytes, not a multiple of 2 \(uint16\)"),
        ("a.bin", llm_c([1, 2, 3])[:-2], "header counts 3 ids, but it has 2"),
        ("a.npy", b"\x93NUMPY but no more", "'.*a.npy' cannot be read"),
        ("a.txt", b"text", "names end in .npy or .bin"),
    ],
)
def test_files_that_are_not_ids(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=message):
        only(tmp_path / name)


def test_arrays_that_are_not_ids(tmp_path):
    for array, message in [
        (np.ones(3), "1-D array of float64"),
        (np.ones((2, 2), int), "2-D array of int64"),
        (np.ones(0, int), "is empty"),
        (np.array([None]), "cannot be read"),
    ]:
        np.save(tmp_path / "a.npy", array)
        with pytest.raises(UsageError, match=message):
            only(tmp_path / "a.npy")
    np.save(tmp_path / "a.npy", np.arange(100))
    (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-8])
    with pytest.raises(UsageError, match=r"a.npy' cannot be read: "):
        only(tmp_path / "a.npy")
    (tmp_path / "b.bin").write_bytes(b"abcd")
    with pytest.raises(UsageError, match=r"dtype 'float32' are not supported"):
        only(tmp_path / "b.bin", dtype="float32")
    with pytest.raises(UsageError, match=r"file '.*c.bin' does not exist"):
        only(tmp_path / "c.bin")


def test_indices_that_do_not_belong(tmp_path):
    path = megatron(tmp_path, "m", [[[1, 2], [3]], [[4]]])
    index = tmp_path / "m.idx"
    whole = index.read_bytes()
    head = 9 + 8 + 1 + 8 + 8
    sizes, pointers, starts = head, head + 3 * 4, head + 3 * 12
    for changed, message in [
        (b"", "is not a Megatron index"),
        (b"x" + whole[1:], "is not a Megatron index"),
        (whole[:9] + b"\2" + whole[10:], "of version 2"),
        (whole[:17] + b"\6" + whole[18:], "dtype code 6"),
        (whole[:-1], r"needs 94 bytes \(got 93\)"),
        (whole[:sizes] + b"\3" + whole[sizes + 1 :], "are not contiguous"),
        (whole[: pointers + 8] + b"\2" + whole[pointers + 9 :], "are not contiguous"),
        (whole[: pointers - 4] + b"\2" + whole[pointers - 3 :], "counts 5 ids in 10 bytes, .* 8 bytes"),
        (whole[: starts + 16] + b"\2" + whole[starts + 17 :], "do not cover its 3 sequences"),
    ]:
        index.write_bytes(changed)
        with pytest.raises(UsageError, match=message):
            only(path)
    index.write_bytes(whole[: head - 8] + struct.pack("<Q", 1) + whole[head : starts + 8])
    assert only(path).ends is None, "no documents are counted"
    index.write_bytes(whole)
    (tmp_path / "m.bin").unlink()
    with pytest.raises(UsageError, match=r"file '.*m.bin' does not exist"):
        only(index)


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '<i8', 'fortran_order': False, 'shape': (3,), ",  # numpy tokenizes it as of Python 2
        b"{'descr': '<i8', 'fortran_order': False, 'shape': (4000000000000,), }",
        b"{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
        b"[" * 2000,
    ],
)
def test_damaged_headers_of_numpy(tmp_path, header):
    head = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
    (tmp_path / "a.npy").write_bytes(head + bytes(24))
    with pytest.raises(UsageError, match=r"a\.npy' cannot be read"):
        only(tmp_path / "a.npy")


def test_an_archive_of_numpy_is_not_an_array(tmp_path):
    np.savez(tmp_path / "a.npz", np.arange(3))
    (tmp_path / "a.npz").rename(tmp_path / "a.npy")
    with pytest.raises(UsageError, match=r"a\.npy' cannot be read"):
        only(tmp_path / "a.npy")
