"""Arrays of weight files that are read when they are needed, and safetensors files written one array at a time."""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors

from layers.errors import UsageError
from tasks.storage.files import whole_file

# Names of dtypes in safetensors files, of weights.
FLOATS = {
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
}


@dataclasses.dataclass(frozen=True)
class Tensor:
    """An array of a file; its values are in memory only while a caller holds the result of `read`."""

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]
    dtype: str = "F32"  # its name in safetensors files

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def turned(self) -> "Tensor":
        """Returns the transposed array."""
        return dataclasses.replace(self, shape=self.shape[::-1], read=lambda: self.read().T)


def held(array: np.ndarray) -> Tensor:
    """Returns an array in memory as a Tensor."""
    names = {dtype: name for name, dtype in FLOATS.items()}
    return Tensor(array.shape, lambda: array, names.get(array.dtype, str(array.dtype)))


def read_safetensors(file: Path) -> dict[str, Tensor]:
    """Returns the arrays of a safetensors file; reads its header only.

    Raises:
      UsageError: the file is damaged or of another format.
    """
    try:
        content: Any = safetensors.safe_open(file, framework="np")
        keys: list[str] = content.keys()
        parts = {key: content.get_slice(key) for key in keys}
    except (safetensors.SafetensorError, OSError, ValueError, TypeError) as error:
        raise UsageError(f"'{file}' is damaged or not a safetensors file: {error}.") from error
    return {
        key: Tensor(tuple(part.get_shape()), lambda key=key: content.get_tensor(key), part.get_dtype())
        for key, part in parts.items()
    }


def size_in_bytes(tensor: Tensor, dtype: str) -> int:
    """Returns the bytes of an array in a dtype of FLOATS."""
    return math.prod(tensor.shape) * FLOATS[dtype].itemsize


def write_safetensors(target: Path, tensors: Mapping[str, Tensor], dtype: str | None = None) -> None:
    """Writes a safetensors file atomically, with one array in memory at a time.

    The library's writers need all arrays of a file at once. The format is the length of the header (8 bytes, little
    endian), the header (JSON), and the arrays in C order.

    Args:
      target: the file; its folder must exist.
      tensors: the arrays by key.
      dtype: a name in FLOATS to convert them to; None keeps their dtypes.
    Raises:
      OSError: the file cannot be written.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # readers based on torch require this entry
    kinds = {key: dtype or tensor.dtype for key, tensor in tensors.items()}
    order = sorted(tensors, key=lambda key: (-FLOATS[kinds[key]].itemsize, key))  # aligned to the largest items
    end = 0
    for key in order:
        start, end = end, end + size_in_bytes(tensors[key], kinds[key])
        header[key] = {"dtype": kinds[key], "shape": list(tensors[key].shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with whole_file(target) as part, part.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for key in order:
            tensors[key].read().astype(FLOATS[kinds[key]], copy=False).tofile(stream)
