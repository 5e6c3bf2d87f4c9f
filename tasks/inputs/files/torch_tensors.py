"""Reader of 1-D integer tensors in files of torch.save, without torch and without executing code from the pickle.

Format (torch.serialization since PyTorch 1.6, checked against files of 2.15): a zip archive of NAME/data.pkl,
NAME/byteorder and NAME/data/KEY with the bytes of storages. Before 1.6, and with
`_use_new_zipfile_serialization=False`: consecutive pickles (a magic number, the protocol, the system, the object, the
keys of storages), followed by a count and bytes for each key.
"""

import io
import pickle
import struct
import zipfile
from typing import Any, NamedTuple

import numpy as np

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
# The only names that a pickle may use, except for the functions that rebuild tensors, and the dtype of each.
DTYPES = {
    ("torch", "ByteStorage"): "uint8",
    ("torch", "CharStorage"): "int8",
    ("torch", "ShortStorage"): "int16",
    ("torch", "IntStorage"): "int32",
    ("torch", "LongStorage"): "int64",
    ("torch.storage", "UntypedStorage"): "bytes",
    ("torch", "uint16"): "uint16",
    ("torch", "uint32"): "uint32",
    ("torch", "uint64"): "uint64",
}
NOT_INTEGERS = ("HalfStorage", "FloatStorage", "DoubleStorage", "BFloat16Storage", "BoolStorage", "ComplexFloatStorage")


class _Storage(NamedTuple):
    dtype: str
    key: str


class _Row(NamedTuple):
    """A tensor without its bytes, which follow the tensor in the old format."""

    storage: _Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def load_row(content: bytes) -> np.ndarray:
    """Returns the 1-D integer tensor in a file of torch.save.

    Args:
      content: the bytes of the file.

    Raises:
      ValueError: not a torch file, damaged, or with other content; the message is a short reason for a tally.
    """
    try:
        return _from_zip(content) if content[:4] == b"PK\x03\x04" else _from_pickles(content)
    except _Refused as error:
        raise ValueError(str(error)) from error
    except Exception as error:  # damaged pickles and archives raise arbitrary exceptions
        raise ValueError("a damaged torch file") from error


class _Refused(Exception):
    """An undamaged file whose content is not a 1-D integer tensor."""


def _from_zip(content: bytes) -> np.ndarray:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        folder = next(name for name in archive.namelist() if name.endswith("/data.pkl")).removesuffix("data.pkl")
        order = f"{folder}byteorder"
        if order in archive.namelist() and archive.read(order) != b"little":
            raise _Refused("a big-endian torch file")
        row = _tensor(_Unpickler(io.BytesIO(archive.read(f"{folder}data.pkl"))).load())
        return _values(row, archive.read(f"{folder}data/{row.storage.key}"))


def _from_pickles(content: bytes) -> np.ndarray:
    stream = io.BytesIO(content)
    magic, _, system, found, keys = (_Unpickler(stream).load() for _ in range(5))
    if magic != LEGACY_MAGIC or not system["little_endian"]:
        raise _Refused("not a torch file")
    row = _tensor(found)
    for key in keys:
        (count,) = struct.unpack("<q", stream.read(8))
        size = 1 if row.storage.dtype == "bytes" else np.dtype(row.storage.dtype).itemsize
        values = stream.read(count * size)
        if key == row.storage.key and len(values) == count * size:
            return _values(row, values)
    raise EOFError


def _tensor(found: Any) -> _Row:
    if not isinstance(found, _Row):
        raise _Refused("something other than one tensor")
    if len(found.shape) != 1:
        raise _Refused("a tensor that is not 1-D")
    return found


def _values(row: _Row, storage: bytes) -> np.ndarray:
    values = np.frombuffer(storage, row.dtype)
    (count,), (stride,) = row.shape, row.strides
    if count == 0:
        return values[:0].copy()
    end = row.offset + (count - 1) * stride + 1
    if row.offset < 0 or count < 0 or stride < 1 or end > len(values):
        raise _Refused("a tensor that goes beyond its storage")
    return values[row.offset : end : stride].copy()


class _Unpickler(pickle.Unpickler):
    """An unpickler for tensors only: it never imports a name from the pickle."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch._utils" and name in ("_rebuild_tensor_v2", "_rebuild_tensor_v3"):
            return _Rebuild()
        if (module, name) == ("collections", "OrderedDict"):  # type of a tensor's hooks, which are empty
            return dict
        if (module, name) in DTYPES:
            return DTYPES[module, name]
        if module == "torch" and name in NOT_INTEGERS:
            raise _Refused("a tensor that is not of integers")
        raise _Refused("something other than one tensor")

    def persistent_load(self, pid: Any) -> _Storage:
        return _Storage(pid[1], pid[2])


class _Rebuild:
    """Replacement for torch's rebuild functions; without attributes, so that a pickle cannot modify it."""

    __slots__ = ()

    def __call__(
        self, storage: _Storage, offset: int, shape: tuple, strides: tuple, grad: bool, hooks: dict, dtype: str = ""
    ) -> _Row:
        return _Row(storage, dtype if isinstance(dtype, str) and dtype else storage.dtype, offset, shape, strides)
