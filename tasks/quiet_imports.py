"""Imports of libraries that log heavily to standard error while they load; TensorFlow without accelerators."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

_ONE_AT_A_TIME = threading.RLock()  # concurrent imports would restore each other's standard error

# Reads standard error while libraries load and drops lines of levels INFO and WARNING, in the formats of absl and of
# TensorFlow, and two kinds of errors that only report missing GPUs. All other lines pass, also those of level FATAL:
# the filter is a separate process, so output written just before an abort is not lost.
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
    """Drops log lines of native libraries below level ERROR while they load; Python's own output is unchanged.

    File descriptor 2 belongs to the process, so this affects all of its threads.
    """
    with _ONE_AT_A_TIME, _filtered():
        yield


def tensorflow() -> Any:
    """Returns the module tensorflow, imported on first use, with accelerators hidden from it (they are for JAX).

    Raises:
      ImportError: it is not installed.
    """
    with contextlib.nullcontext() if "tensorflow" in sys.modules else quiet_native_code():
        import tensorflow as tf
    with contextlib.suppress(RuntimeError):  # TensorFlow is initialized already; its devices cannot change
        for kind in ("GPU", "TPU"):
            tf.config.set_visible_devices([], kind)
    return tf


def tensorflow_datasets() -> Any:
    """Returns the module tensorflow_datasets, with accelerators hidden from TensorFlow (they are for JAX).

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
            with contextlib.suppress(subprocess.TimeoutExpired):  # a process started meanwhile may hold the pipe open
                reader.wait(1)


def _start_filter(target: int) -> subprocess.Popen[bytes] | None:
    """Starts a process that filters its standard input into the file descriptor; None if it cannot be started."""
    program = [sys.executable, "-I", "-S", "-c", _FILTER]
    try:
        # Own session: Ctrl-C must not end the filter before the process whose errors it forwards.
        return subprocess.Popen(program, stdin=subprocess.PIPE, stdout=target, start_new_session=True)
    except OSError:
        return None
