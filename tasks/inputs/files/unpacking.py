"""Decompression of files as streams: gzip, bzip2, xz, Zstandard."""

import bz2
import gzip
import io
import lzma
from typing import Any

PACKED = (".gz", ".tgz", ".bz2", ".xz", ".zst")
MAGIC = {b"\x1f\x8b": ".gz", b"BZh": ".bz2", b"\xfd7zXZ\0": ".xz", b"\x28\xb5\x2f\xfd": ".zst"}


def packing(head: bytes) -> str | None:
    """Returns the file extension of the compression format with these first bytes; None for other files."""
    return next((ending for magic, ending in MAGIC.items() if head.startswith(magic)), None)


def unpacked(name: str, stream: Any) -> Any:
    """Returns the stream, decompressed according to the extension of `name`; the result may not be seekable.

    Raises:
      ImportError: the name ends in .zst, and zstandard is not installed.
    """
    if name.endswith((".gz", ".tgz")):
        return gzip.GzipFile(fileobj=stream)
    if name.endswith(".bz2"):
        return bz2.BZ2File(stream)
    if name.endswith(".xz"):
        return lzma.LZMAFile(stream)
    if name.endswith(".zst"):
        return io.BufferedReader(_Zstandard(stream), 1 << 20)
    return stream


class _Zstandard(io.RawIOBase):
    """Reader of all frames of a Zstandard file.

    zstandard's own reader stops after one frame and does not detect cut-off files.
    """

    def __init__(self, stream: Any):
        try:
            import zstandard
        except ImportError as error:
            raise ImportError(".zst files need the package zstandard. Run pip install zstandard") from error
        self._stream = stream
        self._error = zstandard.ZstdError
        self._new_frame = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj
        self._frame: Any = None  # None between frames
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            packed = (self._frame.unused_data if self._frame is not None and self._frame.eof else b"") or (
                self._stream.read(1 << 16)
            )
            if not packed:
                if self._frame is not None and not self._frame.eof:
                    raise EOFError("it ends inside a Zstandard frame")
                return 0
            if self._frame is None or self._frame.eof:
                self._frame = self._new_frame()
            try:
                self._ready = memoryview(self._frame.decompress(packed))
            except self._error as error:
                raise EOFError(str(error)) from error
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count
