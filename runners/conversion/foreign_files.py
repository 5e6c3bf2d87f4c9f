"""Weight files: safetensors and torch pickles, in one file or in shards, optionally quantized to 8 bits."""

import contextlib
import dataclasses
import importlib
import importlib.util
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from layers.errors import UsageError, first_line, missing_package
from runners.conversion.tensors import Tensor, held, read_safetensors
from tasks.storage.json_values import parsed

ABSMAX_BLOCK = 4096  # values that share a scale in an 8-bit file (Dettmers et al. 2022, bitsandbytes)
PICKLES = (".pt", ".pth", ".bin")
WRAPPERS = ("state_dict", "model")  # keys of training checkpoints that hold the state dict
# Files searched for in a folder; the first that exists is read.
WEIGHT_FILES = (
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
)

ZIP = b"PK\x03\x04"  # of files of torch.save since torch 1.6; older ones are pickles

Tensors = Mapping[str, Tensor]


@dataclasses.dataclass(frozen=True)
class ForeignWeights:
    """Content of a weight file."""

    arrays: Tensors
    is_eight_bit: bool = False  # stored in 8 bits, each array with its own scales
    num_heads: int | None = None  # attention heads, if the file has their number


def read_weights(path: str) -> ForeignWeights:
    """Opens the arrays of a file, of the shards in an index, or of a folder with either.

    Arrays of safetensors files are read when they are used.

    Raises:
      UsageError: a file is missing, damaged or of another kind, or is a pickle and torch is not installed.
    """
    file = Path(path)
    if file.is_dir():
        found = [name for name in WEIGHT_FILES if (file / name).exists()]
        if not found:
            raise UsageError(f"The folder '{path}' has none of {', '.join(WEIGHT_FILES)}. Give the path of the file.")
        file = file / found[0]
    pieces = [_read_one(piece) for piece in _pieces(file)]
    arrays, is_eight_bit = _dequantized({key: array for piece in pieces for key, array in piece.arrays.items()}, path)
    return ForeignWeights(arrays, is_eight_bit, pieces[0].num_heads if pieces else None)


def _pieces(file: Path) -> list[Path]:
    """Returns the shards of an index; `file` itself if it is not an index."""
    if file.suffix != ".json":
        return [file]
    try:
        names = sorted(set(parsed(file.read_text())["weight_map"].values()))
    except OSError as error:
        raise UsageError(f"'{file}' cannot be read: {error.strerror or error}.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"'{file}' is not a weight index: weight_map, from keys to files, is missing.") from error
    if not all(isinstance(name, str) and "\0" not in name for name in names):
        raise UsageError(f"'{file}' is not a weight index: some values of its weight_map are not file names.")
    return [file.parent / name for name in names]


def _read_one(file: Path) -> ForeignWeights:
    try:
        with file.open("rb"):
            pass
    except OSError as error:
        raise UsageError(f"The file '{file}' cannot be read: {error.strerror or error}.") from error
    if file.suffix in PICKLES:
        return _read_pickle(file)
    if file.suffix != ".safetensors":
        kinds = (".safetensors", *PICKLES)
        raise UsageError(f"A weight file must end in {', '.join(kinds)} (got '{file}').")
    return ForeignWeights(read_safetensors(file))


class BoundedReader(io.BufferedReader):
    """A file whose reads need no more memory than the file has bytes, whatever length a damaged pickle states."""

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(os.fstat(self.fileno()).st_size - self.tell(), 0)
        return super().read(left if size is None or size < 0 else min(size, left))


def _read_pickle(file: Path) -> ForeignWeights:
    if importlib.util.find_spec("torch") is None:
        raise missing_package(f"'{file}', a pickle of torch,", "torch", "torch")
    torch: Any = importlib.import_module("torch")
    try:
        with file.open("rb") as stream:
            is_zip = stream.read(len(ZIP)) == ZIP
        with contextlib.nullcontext(file) if is_zip else BoundedReader(io.FileIO(file)) as source:
            content = torch.load(source, map_location="cpu", weights_only=True)
    except Exception as error:  # zip, pickle and torch raise different exceptions for unknown bytes
        raise UsageError(f"'{file}' cannot be read by torch.load with weights_only: {first_line(error)}.") from error
    num_heads = None
    if isinstance(content, Mapping):
        arguments = content.get("model_args")  # of nanoGPT
        num_heads = arguments.get("n_head") if isinstance(arguments, Mapping) else None
        content = next((content[key] for key in WRAPPERS if isinstance(content.get(key), Mapping)), content)
    if not isinstance(content, Mapping) or not content:
        raise UsageError(f"'{file}' does not contain a state dict.")
    odd = [str(key) for key, value in content.items() if not isinstance(value, torch.Tensor)]
    if odd:
        raise UsageError(f"'{file}' does not contain a state dict: {odd[0]} is not a tensor.")
    # torch has no conversion from bfloat16 to numpy; float32 represents its values exactly
    widened = lambda tensor: tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    arrays = {key: held(widened(tensor.detach()).numpy()) for key, tensor in content.items()}
    return ForeignWeights(arrays, num_heads=num_heads if isinstance(num_heads, int) else None)


def _dequantized(tensors: Tensors, path: str) -> tuple[Tensors, bool]:
    """Dequantizes 8-bit weights of bitsandbytes: `code[q] * absmax[block]` over the flattened weight."""
    names = [key.removesuffix(".absmax") for key in tensors if key.endswith(".absmax")]
    if not names:
        return tensors, False
    arrays = {key: tensor.read() for key, tensor in tensors.items()}
    for name in names:
        absmax = arrays.pop(f"{name}.absmax")
        codes, table = arrays.get(f"{name}.weight"), arrays.pop(f"{name}.code", None)
        if codes is None or table is None or codes.dtype != np.uint8 or table.shape != (256,):
            raise UsageError(
                f"'{path}' has {name}.absmax, but not an 8-bit {name}.weight with a {name}.code of 256 values."
            )
        blocks = -(-codes.size // ABSMAX_BLOCK)
        if absmax.size != blocks:
            raise UsageError(
                f"'{path}' has {absmax.size} values in {name}.absmax, but {name}.weight has {blocks} blocks of "
                f"{ABSMAX_BLOCK}."
            )
        scale = np.repeat(absmax.astype(np.float32).ravel(), ABSMAX_BLOCK)[: codes.size]
        arrays[f"{name}.weight"] = table.astype(np.float32)[codes] * scale.reshape(codes.shape)
    return {key: held(array) for key, array in arrays.items()}, True
