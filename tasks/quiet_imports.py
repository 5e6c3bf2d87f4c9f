"""Imports of libraries that write much to standard error while they load; TensorFlow without accelerators."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

_ONE_AT_A_TIME = threading.RLock()  # two would restore each other's standard error

# Reads standard error while libraries load and drops lines of levels INFO and WARNING, in the formats of absl and of
# TensorFlow, and two kinds of errors that only report missing GPUs. All other lines pass, and those of level FATAL
# too: this is a process of its own, so what a process writes just before it aborts is not lost with it.
_FILTER = r"""
import os, re, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
dropped = re.compile(
    rb"^[IW][0-9]{4} |^[0-9-]{10} [0-9:.]+: [IW] |^WARNING: All log messages before absl"
    rb"|^To enable the following instructions|failed call to cuInit|Unable to register cu"
)
for line in iter(sys.stdin.buffer.readline, b""):
    if not dropped.search(line):
        os.write(1, line)
"""


@contextlib.contextmanager
def quiet_native_code() -> Iterator[None]:
    """Drops what native libraries log below level ERROR while they load; what Python writes is not touched.

    File descriptor 2 belongs to the process, so this holds for all of its threads.
    """
    with _ONE_AT_A_TIME, _filtered():
        yield


def tensorflow() -> Any:
    """The module tensorflow, imported when it is needed; it leaves the accelerators to jax.

    Raises:
      ImportError: it is not installed.
    """
    with contextlib.nullcontext() if "tensorflow" in sys.modules else quiet_native_code():
        import tensorflow as tf
    with contextlib.suppress(RuntimeError):  # somebody has used it before: what it took, it has
        for kind in ("GPU", "TPU"):
            tf.config.set_visible_devices([], kind)
    return tf


def tensorflow_datasets() -> Any:
    """The module tensorflow_datasets; TensorFlow leaves the accelerators to jax.

    Raises:
      ImportError: one of them is not installed.
    """
    tensorflow()
    import tensorflow_datasets as tfds

    return tfds


@contextlib.contextmanager
def _filtered() -> Iterator[None]:
    native, python = os.dup(2), sys.stderr
    reader = _start_filter(native)
    with os.fdopen(native, "w", buffering=1) as ours:
        if reader is None or reader.stdin is None:
            yield
            return
        sys.stderr = ours
        os.dup2(reader.stdin.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(native, 2)
            sys.stderr = python
            reader.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a process started meanwhile holds the pipe open
                reader.wait(1)


def _start_filter(target: int) -> subprocess.Popen[bytes] | None:
    """The process that filters its standard input into the file descriptor; None if it cannot be started."""
    program = [sys.executable, "-I", "-S", "-c", _FILTER]
    try:
        # A session of its own: Ctrl-C must not end it before the process whose errors it passes on.
        return subprocess.Popen(program, stdin=subprocess.PIPE, stdout=target, start_new_session=True)
    except OSError:
        return None
