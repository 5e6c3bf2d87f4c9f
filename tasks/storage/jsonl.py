"""Files of JSON lines: one object per line, of which a crash can truncate only the last."""

import contextlib
import json
import math
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from layers.errors import VortaroError
from tasks.storage.files import Place, write_whole
from tasks.storage.json_values import parsed

REWRITE_SECONDS = 10.0  # seconds between two writes of an object; more if it is large:
BYTES_PER_SECOND = 100_000  # upper bound on the average rate of repeated uploads


def read_lines(file: Place) -> Iterator[dict[str, Any]]:
    """Yields the objects of a file, which may be missing; skips lines truncated by a crash, and damaged ones."""
    if not file.exists():
        return
    for line in file.read_bytes().splitlines():
        with contextlib.suppress(ValueError):
            if isinstance(found := parsed(line), dict):
                yield found


def append_line(file: Place, content: Mapping[str, Any]) -> dict[str, Any]:
    """Appends an object, after the end of a truncated last line; returns it as `read_lines` will yield it.

    An object on a store is read and rewritten.
    """
    line, before = _line(content), file.read_text() if file.exists() else ""
    added = line if f"\n{before}".endswith("\n") else f"\n{line}"
    if isinstance(file, Path):
        with file.open("a") as stream:
            stream.write(added)
    else:
        write_whole(file, before + added)
    return json.loads(line)


def finite(value: Any) -> Any:
    """Replaces numbers that are not finite with None, also in containers, because JSON lacks infinity and NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


class LineFile:
    """A file that begins with the lines of `contents` and grows by lines. A local file is appended to line by line.

    An object on a store cannot grow: a thread rewrites it, some seconds after the lines.
    """

    def __init__(self, file: Place, contents: Iterable[Mapping[str, Any]]):
        text = "".join(map(_line, contents))
        self._file, self._lines, self._size = file, [text], len(text)
        self._timer: threading.Timer | None = None
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._lost: str | None = None
        write_whole(file, text)
        self._stream = file.open("a") if isinstance(file, Path) else None

    def write(self, content: Mapping[str, Any]) -> None:
        """Adds an object."""
        line = _line(content)
        if self._stream is not None:
            self._stream.write(line)
            self._stream.flush()
            return
        with self._lock:
            self._lines.append(line)
            self._size += len(line)
            if self._timer is None:
                self._timer = threading.Timer(max(REWRITE_SECONDS, self._size / BYTES_PER_SECOND), self.flush)
                self._timer.daemon = True
                self._timer.start()

    def flush(self) -> None:
        """Writes pending lines; after a failure they are retried with the next lines."""
        if self._stream is not None:
            return
        with self._writing:
            with self._lock:
                if self._timer is None and self._lost is None:
                    return
                text = "".join(self._lines)
                self._lines = [text]
                if self._timer is not None:
                    self._timer.cancel()
                self._timer = None
            try:
                write_whole(self._file, text)
                self._lost = None
            except VortaroError as error:
                self._lost = str(error)

    def close(self) -> None:
        """Writes pending lines and closes the file.

        Raises:
          VortaroError: pending lines could not be written.
        """
        self.flush()
        if self._stream is not None:
            self._stream.close()
        if self._lost is not None:
            raise VortaroError(f"Lines of '{self._file}' are lost: {self._lost} Run the same command again to resume.")


def _line(content: Mapping[str, Any]) -> str:
    return json.dumps(finite(content)) + "\n"
