"""Native libraries, kept from talking while they load, and from memory that is jax's."""

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

_ONE_AT_A_TIME = threading.RLock()  # two would put back each other's standard error


@contextlib.contextmanager
def quiet_native_code() -> Iterator[None]:
    """Drops what native libraries write to standard error while they load; what Python writes still comes through."""
    with _ONE_AT_A_TIME, _dropped():
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
def _dropped() -> Iterator[None]:
    native, python, null = os.dup(2), sys.stderr, os.open(os.devnull, os.O_WRONLY)
    with os.fdopen(os.dup(2), "w", buffering=1) as ours:
        sys.stderr = ours
        os.dup2(null, 2)
        try:
            yield
        finally:
            os.dup2(native, 2)
            sys.stderr = python
            os.close(native)
            os.close(null)
