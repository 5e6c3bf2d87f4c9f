"""Who trains in a folder on an object store. Stores know no locks: the holder renews a small object there.

Leases are numbered objects, `lease/00000007`. Only their making is conditional (a store makes an object of a
name once): the highest number holds, and who takes over makes the next one. Clocks of machines are not compared.
"""

import contextlib
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any

from layers.errors import UsageError
from runners.processes.clock import CLOCK, Clock
from tasks.storage.files import Place, file_system, no_bucket, reached

FOLDER = "lease"
RENEW_SECONDS = 10.0
DEAD_SECONDS = 60.0  # without a renewal, which others wait for


@contextlib.contextmanager
def held(workdir: Place, clock: Clock = CLOCK) -> Iterator[None]:
    """Inside, this process has the folder. It ends itself where another one has taken over meanwhile.

    Args:
      workdir: the folder.
      clock: the time that renewals are measured by.

    Raises:
      UsageError: another process has it.
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
        with contextlib.suppress(Exception):  # who comes next waits a minute then
            lease.write(released=True)


class _Lease:
    def __init__(self, workdir: Place, clock: Clock):
        self._workdir, self._clock = workdir, clock
        self._system, self._root = file_system(workdir / FOLDER)
        self._number = 0
        self._renewals = 0

    def take(self) -> None:
        """Makes the next lease as soon as nobody holds the last one; raises a UsageError where it is renewed."""
        number, seen = self._last()
        began = self._clock.now()
        if seen is not None and not _is_over(seen):
            said = f"waiting for up to {DEAD_SECONDS:.0f} s to see whether it still does"
            print(f"'{self._workdir}' was trained in by {seen['host']} (process {seen['pid']}): {said}.", flush=True)
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
        """Renews the lease until `ended`; ends the process where another one has the next."""
        while not self._clock.wait(ended, RENEW_SECONDS):
            try:
                if self._last()[0] > self._number:
                    said = f"another process has taken over '{self._workdir}', which this one did not reach for a while"
                    print(f"vortaro: {said}.", file=sys.stderr, flush=True)
                    os._exit(1)  # whatever this process would still write there is no longer its own
                self.write()
            except Exception:  # the store does not answer: it may again, before others take it for granted
                continue

    def write(self, *, released: bool = False) -> None:
        """Renews the lease, or gives it up."""
        self._renewals += 1
        self._system.pipe_file(self._name(self._number), self._content(released))

    def _last(self) -> tuple[int, dict[str, Any] | None]:
        """The highest number, and what its holder has written last; 0 and None where nobody was here yet."""
        while True:
            try:
                name = max(self._system.ls(self._root, detail=False), key=_number, default=None)
            except FileNotFoundError:
                name = None
            if name is None or not _number(name):
                return 0, None
            with contextlib.suppress(FileNotFoundError):  # removed by who took the next: look again
                return _number(name), json.loads(self._system.cat_file(name))

    def _refuse(self, holder: dict[str, Any] | None) -> None:
        who = f" ({holder['host']}, process {holder['pid']})" if holder else ""
        raise UsageError(f"Another process trains in '{self._workdir}'{who}: wait for it, or choose another --workdir.")

    def _name(self, number: int) -> str:
        return f"{self._root}/{number:08}"

    def _content(self, released: bool = False) -> bytes:
        who = {"host": socket.gethostname(), "pid": os.getpid(), "space": _process_space()}
        return json.dumps({**who, "renewals": self._renewals, "released": released}).encode()


def _number(name: str) -> int:
    last = name.rpartition("/")[2]
    return int(last) if last.isdigit() else 0


def _is_over(holder: dict[str, Any] | None) -> bool:
    """Whether nobody holds a lease: it was given up, or its process was one of this machine and is no more."""
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
    """Where process numbers mean the same processes: a boot of a machine, and a container on it; "" if unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
