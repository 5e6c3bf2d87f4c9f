"""Locks of local files between processes. The system releases them when a process exits."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


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
            fcntl.flock(stream, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError as error:  # Lustre without flock, NFS without locks
            print(
                f"'{file.parent}' cannot be locked, as its file system has no locks ({error.strerror}). Start no other "
                f"run in it."
            )
        yield
