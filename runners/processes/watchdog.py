"""The watchdog: detection of an update that does not end."""

import contextlib
import faulthandler
import json
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

from runners.processes.coordination import ProcessGroup, end
from tasks.clock import CLOCK, Clock
from tasks.storage.files import Place, make_folder, write_whole


class Watchdog:
    """Detects an update that does not end, and exits this process with the stacks of its threads.

    Args:
      processes: the processes of the run; the others exit too.
      limit: seconds of an operation (None: no limit).
      clock: the clock for the time limit.
    """

    def __init__(self, processes: ProcessGroup, limit: float | None, clock: Clock = CLOCK):
        self._processes, self._limit, self._clock = processes, limit, clock
        self._what = ""  # the name of the current operation
        self._until = float("inf")

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Enforces the time limits of `expect` inside the context."""
        closed = threading.Event()
        if self._limit is not None:
            threading.Thread(target=self._watch, args=(closed, self._limit), name="watchdog", daemon=True).start()
        try:
            yield
        finally:
            closed.set()
            self._until = float("inf")

    def expect(self, what: str, step: int, updates: int = 1) -> None:
        """Starts the time limit of an operation.

        Args:
          what: its name for the error message ("Update", "The batch of update").
          step: the number of the update.
          updates: the number of updates whose time it may take.
        """
        self._what, self._processes.step = what, step
        if self._limit is not None:
            self._until = self._clock.now() + self._limit * updates

    def rest(self) -> None:
        """Suspends the time limit until the next `expect`, for work that may take any time."""
        self._until = float("inf")

    def _watch(self, closed: threading.Event, limit: float) -> None:
        while not self._clock.wait(closed, min(1.0, limit / 4)):
            if self._clock.now() > self._until:
                self._time_out()

    def _time_out(self) -> None:
        message = f"{self._what} {self._processes.step} has not ended within train.step_timeout = {self._limit:g} s"
        where = None
        with contextlib.suppress(Exception):
            where = write_stacks(self._processes)
        stacks = f"The stacks of all threads are in {where.parent}. " if where is not None else ""
        who = [""]
        if self._processes.several:
            # These calls do not return if process 0 hangs, and then nothing else would end this process.
            _bounded(lambda: who.append(self._who()), seconds=5)
        message = f"{message}. {who[-1]}{stacks}Run the same command again to resume from the last checkpoint."
        if self._processes.several:
            _bounded(lambda: self._processes.put("stop", json.dumps({"message": message, "stuck": True})), seconds=5)
            self._clock.sleep(15)  # meanwhile `Heartbeat._watch` exits this process
        end(message)

    def _who(self) -> str:
        """Returns a sentence with the slowest processes, from the steps in their last heartbeats."""
        beats = {index: json.loads(beat) for index, beat in self._processes.get_all("beats").items() if beat != "gone"}
        last = min(beat[1] for beat in beats.values())
        slowest = [f"process {index} ({beat[2]})" for index, beat in sorted(beats.items()) if beat[1] == last]
        if len(slowest) == len(beats):
            return "All processes are at the same update. "
        return f"The slowest are at update {last}: {', '.join(slowest[:4])}. "


def write_stacks(processes: ProcessGroup) -> Place | None:
    """Writes the stacks of all threads to `processes.stacks`, for at most 10 seconds; returns the path of the file."""
    if processes.stacks is None:
        return None
    target = processes.stacks / f"process_{processes.index}.txt"
    with tempfile.TemporaryFile("w+") as file:  # faulthandler needs a file descriptor; remote files have none
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        stacks = file.read()
    _bounded(lambda: _write(target, stacks), seconds=10)  # a file system that hangs may have caused the hang
    return target


def _write(target: Place, text: str) -> None:
    make_folder(target.parent)
    write_whole(target, text)


def _bounded(work: Callable[[], Any], seconds: float) -> None:
    """Runs `work` in a thread for at most `seconds`; suppresses its exceptions, and leaves it if it does not end."""

    def quietly() -> None:
        with contextlib.suppress(Exception):
            work()

    thread = threading.Thread(target=quietly, daemon=True)
    thread.start()
    thread.join(timeout=seconds)
