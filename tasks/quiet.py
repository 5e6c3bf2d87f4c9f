"""Native libraries, kept from talking while they load."""

import contextlib
import os
import sys
import threading
from collections.abc import Iterator

_ONE_AT_A_TIME = threading.RLock()  # two would put back each other's standard error


@contextlib.contextmanager
def quiet_native_code() -> Iterator[None]:
    """Drops what native libraries write to standard error while they load; what Python writes still comes through."""
    with _ONE_AT_A_TIME, _dropped():
        yield


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
