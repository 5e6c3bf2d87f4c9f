"""Line files: files of text lines that grow during a run."""

import threading
from pathlib import Path

from layers.errors import VortaroError
from tasks.storage.files import Place, write_whole

REWRITE_SECONDS = 10.0  # seconds between two writes of an object; more if it is large:
BYTES_PER_SECOND = 100_000  # upper bound on the average rate of repeated uploads


class LineFile:
    """A file that begins with `text` and grows by lines. A local file is appended to line by line.

    An object on a store cannot grow: a thread rewrites it, some seconds after the lines.
    """

    def __init__(self, file: Place, text: str):
        self._file, self._lines, self._size = file, [text], len(text)
        self._timer: threading.Timer | None = None
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._lost: str | None = None
        write_whole(file, text)
        self._stream = file.open("a") if isinstance(file, Path) else None

    def write(self, line: str) -> None:
        """Adds a line, which must end in a newline."""
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
            raise VortaroError(f"Lines of '{self._file}' are lost: {self._lost}")
