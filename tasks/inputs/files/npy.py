"""Reader of arrays in the .npy format, without the archives and pickles that numpy.load also reads."""

import contextlib
import io
import tokenize
from collections.abc import Iterator

import numpy as np

from layers.errors import first_line


def mapped(name: str) -> np.ndarray:
    """Returns the array in a file, memory-mapped.

    Raises:
      OSError: the file cannot be opened.
      ValueError: it is damaged or of another format.
    """
    with _one_error():
        return np.lib.format.open_memmap(name, mode="r")


def from_bytes(content: bytes) -> np.ndarray:
    """Returns the array in the content of a file; raises a ValueError if it is damaged or of another format."""
    with _one_error():
        return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)


@contextlib.contextmanager
def _one_error() -> Iterator[None]:
    """Turns what numpy raises for damaged headers into a ValueError; a header may name more bytes than memory has."""
    try:
        yield
    except (EOFError, SyntaxError, TypeError, OverflowError, RecursionError, MemoryError, tokenize.TokenError) as error:
        raise ValueError(f"a damaged .npy file ({first_line(error)})") from error
