"""A file of lines that grows while a run goes on."""

import threading
from pathlib import Path

from layers.errors import VortaroError
from tasks.storage.files import Place, write_whole

REWRITE_SECONDS = 10.0  # between two rewritings of an object, and more where it is large:
BYTES_PER_SECOND = 100_000  # no more than so much is sent over and over


class LineFile:
    """Begins with `text`, and takes lines. A local file is appended to, line by line.

    An object on a store cannot grow: it is written anew from a thread, some seconds behind the lines.
    """

    def __init__(self, file: Place, text: str):
        self._file, self._lines, self._size = file, [text], len(text)
        self._timer: threading.Timer | None = None
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._lost: str | None = None
        write_whole(file, text)
        self._stream = file.open("a") if isinstance(file, Path) else None

    def write(self, line: str) -> None:
        """Adds a line, which ends in a newline."""
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
        """Writes what was not written yet; what cannot be written is tried again with the next lines."""
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
        """Writes the rest.

        Raises:
          VortaroError: it could not be written.
        """
        self.flush()
        if self._stream is not None:
            self._stream.close()
        if self._lost is not None:
            raise VortaroError(f"Lines of '{self._file}' are lost: {self._lost}")
