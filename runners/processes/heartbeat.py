"""Failure detection: heartbeats between processes and a watchdog for hung updates.

If there are several processes, each sends a heartbeat every few seconds. Process 0 detects the ones that stop, and all
exit with an error message instead of hanging in a collective. Each process detects its own hung update.
"""

import contextlib
import ctypes
import faulthandler
import json
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from layers.errors import VortaroError, first_line
from runners.processes.clock import CLOCK, Clock
from runners.processes.coordination import Peers, end, lost_contact, peers
from tasks.storage.files import Place, make_folder, write_whole

BEATS_PER_SECOND = 128  # that process 0 reads at most, of all processes together
IMPATIENCE = 10.0  # seconds without a heartbeat that count as failure once a process has lost contact with another
STACKS = "stacks"
GO_ON = "This process stops too. Run the same command again to resume from the last checkpoint."


class Vigil:
    """Sends heartbeats of this process and checks those of the others.

    Args:
      others: the processes of the run.
      patience: seconds without a heartbeat after which a process counts as dead.
      clock: the clock for this limit.
    """

    def __init__(self, others: Peers, patience: float, clock: Clock = CLOCK):
        self._peers, self._patience, self._clock = others, patience, clock
        self._interval = max(1.0, others.count / BEATS_PER_SECOND)
        self._closed = threading.Event()
        self._lost = ""  # the error by which this process lost contact with another
        self._complained: float | None = None  # when a lost contact was first reported to process 0
        self._once = threading.Lock()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._watch, self._watch_coordinator)]
        now = self._clock.now()
        self._answered = now  # when process 0 last answered
        # By process: its last heartbeat, and when it arrived. Processes that never send one are detected too.
        self._heard = {index: (json.dumps([0, 0, "host unknown", ""]), now) for index in range(others.count)}

    def start(self) -> None:
        """Starts the threads; from now on this process exits when another one fails."""
        on_abort(lambda: self._end(self._aborted()))
        for thread in self._threads:
            thread.start()

    def _aborted(self) -> str:
        if self._peers.primary:
            return (
                "This process was aborted for the reason above. Run the same command again to resume from the last "
                "checkpoint."
            )
        return f"Contact with process 0, the coordinator of this run, is lost, or see the error above. {GO_ON}"

    def close(self) -> None:
        """Stops heartbeats; peers no longer treat silence as failure."""
        self._closed.set()
        for thread in self._threads:
            thread.join(timeout=self._patience)  # a heartbeat in flight would overwrite "gone"
        with contextlib.suppress(Exception):
            self._peers.put(f"beats/{self._peers.index}", "gone", again=True)

    def fail(self, error: BaseException) -> NoReturn:
        """Sends the error of this process to the others and exits."""
        code = error.exit_code if isinstance(error, VortaroError) else 1
        if isinstance(error, SystemExit | KeyboardInterrupt):
            code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 130
        if lost_contact(error):
            self._lost = first_line(error, 200)
            print(f"{self._peers.name}: {first_line(error, 1000)}", file=sys.stderr, flush=True)
            self._clock.sleep(self._patience + 30)  # meanwhile `_watch` exits and names the process that is lost
        message = str(error) if isinstance(error, VortaroError) else f"{type(error).__name__}: {error}"
        record = {"by": self._peers.index, "message": message, "code": code, "name": self._peers.name}
        with contextlib.suppress(Exception):
            if not self._peers.put("stop", json.dumps(record)):
                self._clock.sleep(5)  # `_watch` prints the earlier error of another process
        if not isinstance(error, VortaroError):
            traceback.print_exception(error)
        self._end(message, code)

    def _watch(self) -> None:
        number = 0
        while not self._clock.wait(self._closed, self._interval if number else 0):
            number += 1
            try:
                beat = json.dumps([number, watchdog().step, self._peers.host, self._lost])
                self._peers.put(f"beats/{self._peers.index}", beat, again=True)
                if self._peers.primary:
                    self._find_silent()
                record = self._peers.known("stop")
            except Exception:
                if self._closed.is_set() or self._clock.now() - self._answered > self._patience:
                    return  # `_watch_coordinator` reports it
                continue
            self._answered = self._clock.now()
            if record is not None:
                self._stop(json.loads(record))

    def _watch_coordinator(self) -> None:
        while not self._clock.wait(self._closed, 1.0):
            silence = self._clock.now() - self._answered
            if silence > self._patience:
                self._end(f"Process 0, the coordinator of this run, has not answered for {silence:.0f} s. {GO_ON}")

    def _find_silent(self) -> None:
        """Finds processes without a recent heartbeat and stops the run if there is one; process 0 only."""
        now = self._clock.now()
        for index, beat in self._peers.get_all("beats").items():
            if beat == "gone":
                self._heard.pop(index, None)
            elif self._heard.get(index, ("", 0))[0] != beat:
                self._heard[index] = (beat, now)
        beats = {index: json.loads(beat) for index, (beat, _) in self._heard.items()}
        complaints = [index for index, beat in beats.items() if beat[3]]
        if complaints and self._complained is None:
            self._complained = now
        patience = self._patience if self._complained is None else min(self._patience, IMPATIENCE)
        silent = [index for index, (_, since) in self._heard.items() if now - since > patience]
        for index in silent[:1]:
            quiet = now - self._heard[index][1]
            self._call(f"Process {index} ({beats[index][2]}) has sent no heartbeat for {quiet:.0f} s. {GO_ON}")
        if complaints and not silent and self._complained is not None and now - self._complained > 3 * patience:
            index = complaints[0]
            self._call(f"Process {index} ({beats[index][2]}) lost contact with another one: {beats[index][3]}. {GO_ON}")

    def _call(self, message: str) -> None:
        self._peers.put("stop", json.dumps({"message": message}))

    def _stop(self, word: Mapping[str, Any]) -> None:
        if word.get("stuck"):
            watchdog().leave_stacks()
        if word.get("by") == self._peers.index:
            self._clock.sleep(60)  # `fail` is about to print the message and exit
        name = f"{word['name']} stopped: " if "name" in word else ""
        self._end(f"{name[:1].upper()}{name[1:]}{word['message']}", word.get("code", 1))

    def _end(self, message: str, code: int = 1) -> NoReturn:
        if not self._once.acquire(blocking=False):
            self._clock.sleep(60)
        if self._peers.primary:
            # The coordination service ends with this process: the others must read the reason before.
            self._clock.sleep(self._interval + 2)
        end(message, code)


class Watchdog:
    """Detects an update that does not end.

    Args:
      clock: the clock for the time limit.
    """

    def __init__(self, clock: Clock = CLOCK):
        self._clock = clock
        self.step = 0  # the current update
        self._what = ""  # the name of the current operation
        self._limit: float | None = None
        self._until = float("inf")
        self._folder: Place | None = None

    @contextlib.contextmanager
    def watching(self, limit: float | None, folder: Place) -> Iterator[None]:
        """Enforces the limit of `expect` inside the context: more than `limit` seconds end the run (None: no limit)."""
        self._limit, self._folder = limit, folder
        closed = threading.Event()
        if limit is not None:
            threading.Thread(target=self._watch, args=(closed, limit), name="watchdog", daemon=True).start()
        try:
            yield
        finally:
            closed.set()
            self._limit, self._until = None, float("inf")

    def expect(self, what: str, step: int, updates: int = 1) -> None:
        """Starts the time limit of an operation.

        Args:
          what: its name for the error message ("Update", "The batch of update").
          step: the number of the update.
          updates: the number of updates whose time it may take.
        """
        self._what, self.step = what, step
        if self._limit is not None:
            self._until = self._clock.now() + self._limit * updates

    def rest(self) -> None:
        """Suspends the time limit until the next `expect`, for work that may take any time."""
        self._until = float("inf")

    def leave_stacks(self) -> Place | None:
        """Writes the stacks of all threads of this process, for at most 10 seconds; returns the path."""
        if self._folder is None:
            return None
        target = self._folder / STACKS / f"process_{peers().index}.txt"
        with tempfile.TemporaryFile("w+") as file:  # faulthandler needs a file descriptor; remote files have none
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            stacks = file.read()
        _bounded(lambda: _write(target, stacks), seconds=10)  # a file system that hangs may have caused the hang
        return target

    def _watch(self, closed: threading.Event, limit: float) -> None:
        while not self._clock.wait(closed, min(1.0, limit / 4)):
            if self._clock.now() > self._until:
                self._bark()

    def _bark(self) -> None:
        message = f"{self._what} {self.step} has not ended within train.step_timeout = {self._limit:g} s"
        where = None
        with contextlib.suppress(Exception):
            where = self.leave_stacks()
        stacks = f"The stacks of all threads are in {where.parent}. " if where is not None else ""
        who = [""]
        if peers().several:
            # These calls do not return if process 0 hangs, and then nothing else would end this process.
            _bounded(lambda: who.append(self._who()), seconds=5)
        message = f"{message}. {who[-1]}{stacks}Run the same command again to resume from the last checkpoint."
        if peers().several:
            _bounded(lambda: peers().put("stop", json.dumps({"message": message, "stuck": True})), seconds=5)
            self._clock.sleep(15)  # meanwhile `Vigil._watch` exits this process
        end(message)

    def _who(self) -> str:
        """Returns a sentence with the slowest processes, from the steps in their last heartbeats."""
        beats = {index: json.loads(beat) for index, beat in peers().get_all("beats").items() if beat != "gone"}
        last = min(beat[1] for beat in beats.values())
        slowest = [f"process {index} ({beat[2]})" for index, beat in sorted(beats.items()) if beat[1] == last]
        if len(slowest) == len(beats):
            return "All processes are at the same update. "
        return f"The slowest are at update {last}: {', '.join(slowest[:4])}. "


_watchdog = Watchdog()


def watchdog() -> Watchdog:
    """Returns the watchdog of this process."""
    return _watchdog


_handlers: list[Any] = []  # C functions that must outlive this module's calls


def on_abort(say: Callable[[], Any]) -> None:
    """Calls a function when the process aborts (SIGABRT), as JAX does when it cannot reach the coordinator."""
    kind = ctypes.CFUNCTYPE(None, ctypes.c_int)
    handler = kind(lambda number: say())
    _handlers.append(handler)
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, kind], ctypes.c_void_p
    libc.signal(int(signal.SIGABRT), handler)


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
