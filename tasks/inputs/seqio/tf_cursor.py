"""Access to a tf.data pipeline by element number, with snapshots to resume from."""

import base64
import os
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from layers.errors import first_line
from tasks.quiet_imports import tensorflow

Element = dict[str, np.ndarray]
NAME = "iterator"  # prefix of the files that TensorFlow writes


class TfCursor:
    """A reader of the pipeline that `make` builds, the same at every call; earlier elements are read from the start.

    Snapshots are clu's checkpoints of the iterator, compressed and base64-encoded for JSON. They are taken every
    `snapshot_every` elements, because they take time; the elements after a snapshot are read again.
    """

    def __init__(self, make: Callable[[], Any], snapshot_every: int):
        self._make, self._every = make, snapshot_every
        self._iterator: Any = None
        self._next = 0
        self._last: Element | None = None  # element _next - 1, if it was read
        self._snapshot: dict[str, Any] | None = None

    def element(self, index: int) -> Element | None:
        """Returns element `index`; None after the last one."""
        iterator = self._iterator
        if iterator is None or index < self._next - 1 or (index == self._next - 1 and self._last is None):
            iterator = self._open()
        while self._next <= index:
            if self._next and self._next % self._every == 0:
                self._take()  # before reading the element: a resumed run may need it again
            self._last = next(iterator, None)
            if self._last is None:
                self._iterator = None
                return None
            self._next += 1
        return self._last

    def snapshot(self) -> dict[str, Any] | None:
        """Returns the last snapshot: the number of its next element, and its files; None if there is none yet."""
        return self._snapshot

    def restore(self, snapshot: dict[str, Any]) -> bool:
        """Resumes from a snapshot; returns whether TensorFlow could read it."""
        tf = tensorflow()
        self._open()
        with tempfile.TemporaryDirectory() as folder:
            for name, data in snapshot["files"].items():
                Path(folder, name).write_bytes(zlib.decompress(base64.b64decode(data)))
            try:
                self._iterator.restore(os.path.join(folder, NAME))
            except (tf.errors.OpError, AssertionError, ValueError, RuntimeError):
                self._iterator = None
                return False
        self._next, self._snapshot = int(snapshot["batch"]), snapshot
        return True

    def _open(self) -> Any:
        tf = tensorflow()
        from clu.data.dataset_iterator import TfDatasetIterator

        # Without the autotuner's thread: TensorFlow 2.21 sometimes waits for it forever when an iterator is deleted.
        options = tf.data.Options()
        options.autotune.enabled = False
        self._iterator = TfDatasetIterator(self._make().with_options(options), checkpoint=True)
        self._next, self._last, self._snapshot = 0, None, None
        return self._iterator

    def _take(self) -> None:
        tf = tensorflow()
        if self._snapshot is not None and self._snapshot["batch"] == self._next:
            return  # it has just been restored
        with tempfile.TemporaryDirectory() as folder:
            try:
                self._iterator.save(os.path.join(folder, NAME))
            except tf.errors.OpError as error:
                message = first_line(error.message, 120)
                print(
                    f"TensorFlow cannot save the input's position ({message}). Resumed runs will read from the start."
                )
                self._every = 2**62
                return
            files = {path.name: _packed(path.read_bytes()) for path in Path(folder).iterdir()}
        self._snapshot = {"batch": self._next, "files": files}


def _packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 1)).decode()
