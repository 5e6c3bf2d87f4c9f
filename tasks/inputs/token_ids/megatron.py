"""Reader of the index of Megatron's token ids: `.idx` of MMapIndexedDataset, version 1.

Layout (Megatron-LM, megatron/core/datasets/indexed_dataset.py), little-endian: magic, uint64 version, uint8 dtype code,
uint64 number of sequences S, uint64 length of the document index D, S int32 lengths of sequences, S int64 byte offsets
of them in `.bin`, D int64 numbers of the first sequences of documents, the last being S.
"""

import os
import struct

import numpy as np

from layers.errors import UsageError
from tasks.inputs.files import files

MAGIC = b"MMIDIDX\x00\x00"
HEAD = struct.Struct("<9sQBQQ")
DTYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}  # 6 and 7 are floating point types


def document_ends(name: str, ids_bytes: int) -> tuple[str, np.ndarray | None]:
    """Returns the dtype of the ids and the ends of the documents.

    Args:
      name: the `.idx` file.
      ids_bytes: size of the `.bin` file.

    Returns:
      The name of the dtype, and the end of each non-empty document, exclusive: (D,) int64. None instead of the ends if
      the index has no documents, as in files merged by older tools.

    Raises:
      UsageError: not an index, cut off, or not the index of these ids.
    """
    files.look(name)
    content = np.memmap(name, np.uint8, mode="r") if os.path.getsize(name) else np.zeros(0, np.uint8)
    head = content[: HEAD.size].tobytes()
    if len(head) < HEAD.size or not head.startswith(MAGIC):
        raise UsageError(f"'{name}' is not a Megatron index: it does not start with MMIDIDX.")
    _, version, code, sequences, starts = HEAD.unpack(head)
    if version != 1:
        raise UsageError(f"'{name}' is a Megatron index of version {version}. Only version 1 is supported.")
    if code not in DTYPES:
        raise UsageError(f"'{name}' has numbers of dtype code {code}. Token ids must have one of {sorted(DTYPES)}.")
    need = HEAD.size + sequences * (4 + 8) + starts * 8
    if len(content) < need:
        raise UsageError(f"The index '{name}' is cut off: its header needs {need:,} bytes (got {len(content):,}).")
    lengths = np.frombuffer(content, "<i4", sequences, HEAD.size).astype(np.int64)
    offsets = np.frombuffer(content, "<i8", sequences, HEAD.size + 4 * sequences)
    documents = np.frombuffer(content, "<i8", starts, HEAD.size + 12 * sequences)
    places = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    width = np.dtype(DTYPES[code]).itemsize
    if np.any(lengths < 0) or not np.array_equal(offsets, places[:-1] * width):
        raise UsageError(f"The index '{name}' is damaged: its sequences are not contiguous.")
    if places[-1] * width != ids_bytes:
        raise UsageError(
            f"The index '{name}' counts {places[-1]:,} ids in {places[-1] * width:,} bytes, but its .bin file has "
            f"{ids_bytes:,} bytes. One of them is cut off, or belongs to another data set."
        )
    if starts < 2 and sequences:
        return DTYPES[code], None
    if not starts or documents[0] != 0 or documents[-1] != sequences or np.any(np.diff(documents) < 0):
        raise UsageError(f"The index '{name}' is damaged: its documents do not cover its {sequences:,} sequences.")
    ends = places[documents[1:]]
    return DTYPES[code], ends[np.diff(ends, prepend=0) > 0]
