"""Staged folders: local folders of libraries that cannot write to object stores, copied to the run folder."""

import tempfile
import time
from pathlib import Path

from tasks.storage.files import Place, file_system, reached

COPY_SECONDS = 60.0  # seconds between two copies while files grow


class StagedFolder:
    """A local folder for the files of `target`: `target` itself, or a temporary folder if it is on an object store."""

    def __init__(self, target: Place):
        self._target, self._copied, self._last = target, {}, time.monotonic()
        self._temporary = None if isinstance(target, Path) else tempfile.TemporaryDirectory(prefix="vortaro-")
        self.folder = target if isinstance(target, Path) else Path(str(self._temporary and self._temporary.name))

    def copy(self, *, at_once: bool = True) -> None:
        """Copies changed files; unless `at_once`, at most once a minute.

        Raises:
          UsageError: the store cannot be written to.
        """
        if self._temporary is None or not (at_once or time.monotonic() - self._last > COPY_SECONDS):
            return
        self._last = time.monotonic()
        with reached(self._target):
            system, root = file_system(self._target)
            for file in sorted(path for path in self.folder.rglob("*") if path.is_file()):
                state = (file.stat().st_size, file.stat().st_mtime_ns)
                if self._copied.get(file) != state:
                    system.put_file(str(file), f"{root}/{file.relative_to(self.folder).as_posix()}")
                    self._copied[file] = state

    def close(self) -> None:
        """Copies the remaining changes and removes the temporary folder."""
        if self._temporary is not None:
            self.copy()
            self._temporary.cleanup()
            self._temporary = None
