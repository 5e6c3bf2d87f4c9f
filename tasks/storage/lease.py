"""Leases of run folders on object stores, which have no locks: the holder renews a small object.

Leases are numbered objects, `lease/00000007`. Only their creation is conditional (it fails if the object exists): the
highest number is valid, and a new holder creates the next one. Leases carry a sequence number, not a timestamp, because
clocks of machines differ.
"""

import contextlib
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any, TypedDict

from layers.errors import UsageError, first_line
from tasks.clock import CLOCK, Clock
from tasks.storage.files import Place, file_system, no_bucket, reached
from tasks.storage.json_values import Count, parsed, require_type

FOLDER = "lease"
RENEW_SECONDS = 10.0
DEAD_SECONDS = 60.0  # without a renewal, after which another process may take over


class _Holder(TypedDict):
    host: str
    pid: Count
    space: str
    renewals: Count
    released: bool


def holder_of(content: bytes, name: str) -> dict[str, Any]:
    """Returns the holder in the content of a lease.

    Raises:
      UsageError: it is damaged.
    """
    try:
        holder = parsed(content)
        require_type(holder, _Holder, "it")
    except ValueError as error:
        raise UsageError(
            f"The lease '{name}' cannot be read ({first_line(error)}). Remove it if no process trains in its folder."
        ) from error
    return holder


@contextlib.contextmanager
def held(workdir: Place, clock: Clock = CLOCK) -> Iterator[None]:
    """Holds the lease of a folder inside the context; exits this process if another one takes over.

    Args:
      workdir: the folder.
      clock: the clock for renewals.

    Raises:
      UsageError: another process holds the lease.
    """
    with reached(workdir, "written"):
        lease = _Lease(workdir, clock)
        lease.take()
    ended = threading.Event()
    renewal = threading.Thread(target=lease.keep, args=(ended,), daemon=True)
    renewal.start()
    try:
        yield
    finally:
        ended.set()
        renewal.join()
        with contextlib.suppress(Exception):  # if it fails, the next process waits DEAD_SECONDS
            lease.write(released=True)


class _Lease:
    def __init__(self, workdir: Place, clock: Clock):
        self._workdir, self._clock = workdir, clock
        self._system, self._root = file_system(workdir / FOLDER)
        self._number = 0
        self._renewals = 0

    def take(self) -> None:
        """Creates the next lease as soon as the last one is free; raises a UsageError if its holder renews it."""
        number, seen = self._last()
        began = self._clock.now()
        if seen is not None and not _is_over(seen):
            print(
                f"'{self._workdir}' is leased by {seen['host']} (process {seen['pid']}). Waiting for up to "
                f"{DEAD_SECONDS:.0f} s for a renewal.",
                flush=True,
            )
        while not _is_over(seen) and self._clock.now() - began < DEAD_SECONDS:
            self._clock.sleep(min(1.0, RENEW_SECONDS / 4))
            latest, now = self._last()
            if not _is_over(now) and (latest, now) != (number, seen):
                self._refuse(now)
            number, seen = latest, now
        self._number = number + 1
        try:
            self._system.pipe_file(self._name(self._number), self._content(), mode="create")
        except FileExistsError:
            self._refuse(self._last()[1])
        except FileNotFoundError as error:
            raise no_bucket(self._workdir) from error
        latest, now = self._last()
        if latest != self._number:
            self._refuse(now)
        for name in self._system.ls(self._root, detail=False):
            if _number(name) < self._number:
                with contextlib.suppress(FileNotFoundError):
                    self._system.rm_file(name)

    def keep(self, ended: threading.Event) -> None:
        """Renews the lease until `ended`; exits the process if another one has created the next lease."""
        while not self._clock.wait(ended, RENEW_SECONDS):
            try:
                if _number(self._newest()) > self._number:  # whatever it holds
                    message = f"Another process has taken over '{self._workdir}' because this one could not renew it"
                    print(f"vortaro: {message}.", file=sys.stderr, flush=True)
                    os._exit(1)  # this process must not write to the folder any more
                self.write()
            except Exception:  # the store does not answer: retry, it may answer before the lease expires
                continue

    def write(self, *, released: bool = False) -> None:
        """Renews the lease, or releases it."""
        self._renewals += 1
        self._system.pipe_file(self._name(self._number), self._content(released))

    def _newest(self) -> str:
        """Returns the name of the lease with the highest number; empty without one."""
        try:
            name = max(self._system.ls(self._root, detail=False), key=_number, default="")
        except FileNotFoundError:
            return ""
        return name if _number(name) else ""

    def _last(self) -> tuple[int, dict[str, Any] | None]:
        """Returns the highest number and the last record of its holder; 0 and None without a lease."""
        while True:
            if not (name := self._newest()):
                return 0, None
            with contextlib.suppress(FileNotFoundError):  # removed by the holder of the next lease: list again
                return _number(name), holder_of(self._system.cat_file(name), name)

    def _refuse(self, holder: dict[str, Any] | None) -> None:
        who = f" ({holder['host']}, process {holder['pid']})" if holder else ""
        raise UsageError(f"Another process trains in '{self._workdir}'{who}. Wait for it, or choose another --workdir.")

    def _name(self, number: int) -> str:
        return f"{self._root}/{number:08}"

    def _content(self, released: bool = False) -> bytes:
        who = {"host": socket.gethostname(), "pid": os.getpid(), "space": _process_space()}
        return json.dumps({**who, "renewals": self._renewals, "released": released}).encode()


def _number(name: str) -> int:
    last = name.rpartition("/")[2]
    return int(last) if last.isdigit() else 0


def _is_over(holder: dict[str, Any] | None) -> bool:
    """Returns whether a lease is free: it was released, or its process ran on this machine and has exited."""
    if holder is None or holder["released"]:
        return True
    if not _process_space() or holder["space"] != _process_space():
        return False  # it may run elsewhere
    if holder["pid"] == os.getpid():
        return True
    try:
        os.kill(holder["pid"], 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _process_space() -> str:
    """Returns the scope of process numbers: the boot of a machine and the container on it; "" if unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
