"""Locks of local files between processes. The system releases them when a process exits."""

import contextlib
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

GLANCE_SECONDS = 0.1  # longer than `is_locked` holds a lock


@contextlib.contextmanager
def locked(file: Path, *, wait: bool) -> Iterator[None]:
    """Locks a file, created if missing, inside the context.

    On a file system without locks, a warning is printed and nothing is locked.

    Args:
      file: the file.
      wait: wait for another process that holds the lock.

    Raises:
      BlockingIOError: another process holds the lock, and `wait` is false.
      OSError: the file cannot be opened.
    """
    with file.open("w") as stream:
        try:
            _lock(stream, wait)
        except BlockingIOError:
            raise
        except OSError as error:  # Lustre without flock, NFS without locks
            print(
                f"'{file.parent}' cannot be locked, as its file system has no locks ({error.strerror}). Start no other "
                f"run in it."
            )
        yield


def _lock(stream: TextIO, wait: bool) -> None:
    """Locks an open file; retries for an instant, because another process may only be looking (`is_locked`)."""
    give_up = time.monotonic() + GLANCE_SECONDS
    while not wait and time.monotonic() < give_up:
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(GLANCE_SECONDS / 10)
    fcntl.flock(stream, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(file: Path) -> bool | None:
    """Returns whether a process holds the lock of a file, without changing the file.

    False without the file; None if the file system has no locks.
    """
    try:
        with file.open() as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError:  # Lustre without flock, NFS without locks; or the file cannot be read
        return None
    return False
