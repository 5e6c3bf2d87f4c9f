"""Heartbeats: detection of processes that end or hang.

Each process of a run sends a heartbeat every few seconds. Process 0 detects the ones that stop, and all exit with an
error message instead of hanging in a collective.
"""

import contextlib
import ctypes
import json
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from layers.errors import VortaroError, first_line
from runners.processes.coordination import ProcessGroup, end, lost_contact
from runners.processes.watchdog import write_stacks
from tasks.clock import CLOCK, Clock

BEATS_PER_SECOND = 128  # that process 0 reads at most, of all processes together
LOST_CONTACT_SECONDS = 10.0  # without a heartbeat, a failure once a process has lost contact with another
RESUME = "This process stops too. Run the same command again to resume from the last checkpoint."


class Heartbeat:
    """Sends heartbeats of this process and checks those of the others.

    Args:
      processes: the processes of the run.
      patience: seconds without a heartbeat after which a process counts as dead.
      clock: the clock for this limit.
    """

    def __init__(self, processes: ProcessGroup, patience: float, clock: Clock = CLOCK):
        self._processes, self._patience, self._clock = processes, patience, clock
        self._interval = max(1.0, processes.count / BEATS_PER_SECOND)
        self._closed = threading.Event()
        self._lost = ""  # the error by which this process lost contact with another
        self._lost_since: float | None = None  # when a lost contact was first reported to process 0
        self._once = threading.Lock()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._watch, self._watch_coordinator)]
        now = self._clock.now()
        self._answered = now  # when process 0 last answered
        # By process: its last heartbeat, and when it arrived. Processes that never send one are detected too.
        self._last = {index: (json.dumps([0, 0, "host unknown", ""]), now) for index in range(processes.count)}

    def start(self) -> None:
        """Starts the threads; from now on this process exits when another one fails."""
        on_abort(lambda: self._end(self._aborted()))
        for thread in self._threads:
            thread.start()

    def _aborted(self) -> str:
        if self._processes.primary:
            return (
                "This process was aborted for the reason above. Run the same command again to resume from the last "
                "checkpoint."
            )
        return f"Contact with process 0, the coordinator of this run, is lost, or see the error above. {RESUME}"

    def close(self) -> None:
        """Stops heartbeats; the others no longer treat silence as failure."""
        self._closed.set()
        for thread in self._threads:
            thread.join(timeout=self._patience)  # a heartbeat in flight would overwrite "gone"
        with contextlib.suppress(Exception):
            self._processes.put(f"beats/{self._processes.index}", "gone", again=True)

    def fail(self, error: BaseException) -> NoReturn:
        """Sends the error of this process to the others and exits."""
        code = error.exit_code if isinstance(error, VortaroError) else 1
        if isinstance(error, SystemExit | KeyboardInterrupt):
            code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 130
        if lost_contact(error):
            self._lost = first_line(error, 200)
            print(f"{self._processes.name}: {first_line(error, 1000)}", file=sys.stderr, flush=True)
            self._clock.sleep(self._patience + 30)  # meanwhile `_watch` exits and names the process that is lost
        message = str(error) if isinstance(error, VortaroError) else f"{type(error).__name__}: {error}"
        record = {"by": self._processes.index, "message": message, "code": code, "name": self._processes.name}
        with contextlib.suppress(Exception):
            if not self._processes.put("stop", json.dumps(record)):
                self._clock.sleep(5)  # `_watch` prints the earlier error of another process
        if not isinstance(error, VortaroError):
            traceback.print_exception(error)
        self._end(message, code)

    def _watch(self) -> None:
        number = 0
        while not self._clock.wait(self._closed, self._interval if number else 0):
            number += 1
            try:
                beat = json.dumps([number, self._processes.step, self._processes.host, self._lost])
                self._processes.put(f"beats/{self._processes.index}", beat, again=True)
                if self._processes.primary:
                    self._find_silent()
                record = self._processes.get("stop")
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
                self._end(f"Process 0, the coordinator of this run, has not answered for {silence:.0f} s. {RESUME}")

    def _find_silent(self) -> None:
        """Finds processes without a recent heartbeat and stops the run if there is one; process 0 only."""
        now = self._clock.now()
        for index, beat in self._processes.get_all("beats").items():
            if beat == "gone":
                self._last.pop(index, None)
            elif self._last.get(index, ("", 0))[0] != beat:
                self._last[index] = (beat, now)
        beats = {index: json.loads(beat) for index, (beat, _) in self._last.items()}
        losses = [index for index, beat in beats.items() if beat[3]]
        if losses and self._lost_since is None:
            self._lost_since = now
        patience = self._patience if self._lost_since is None else min(self._patience, LOST_CONTACT_SECONDS)
        silent = [index for index, (_, since) in self._last.items() if now - since > patience]
        for index in silent[:1]:
            quiet = now - self._last[index][1]
            self._stop_all(f"Process {index} ({beats[index][2]}) has sent no heartbeat for {quiet:.0f} s. {RESUME}")
        if losses and not silent and self._lost_since is not None and now - self._lost_since > 3 * patience:
            index = losses[0]
            self._stop_all(
                f"Process {index} ({beats[index][2]}) lost contact with another one: {beats[index][3]}. {RESUME}"
            )

    def _stop_all(self, message: str) -> None:
        self._processes.put("stop", json.dumps({"message": message}))

    def _stop(self, record: Mapping[str, Any]) -> None:
        if record.get("stuck"):
            write_stacks(self._processes)
        if record.get("by") == self._processes.index:
            self._clock.sleep(60)  # `fail` is about to print the message and exit
        name = f"{record['name']} stopped: " if "name" in record else ""
        self._end(f"{name[:1].upper()}{name[1:]}{record['message']}", record.get("code", 1))

    def _end(self, message: str, code: int = 1) -> NoReturn:
        if not self._once.acquire(blocking=False):
            self._clock.sleep(60)
        if self._processes.primary:
            # The coordination service ends with this process: the others must read the reason before.
            self._clock.sleep(self._interval + 2)
        end(message, code)


# The C function that handles SIGABRT. The kernel has only its address, so this reference must last until a later call
# of `on_abort` has replaced the handler, or until the process ends.
_abort_handler: Any = None


def on_abort(notify: Callable[[], Any]) -> None:
    """Calls a function when the process aborts (SIGABRT), as JAX does when it cannot reach the coordinator."""
    global _abort_handler
    kind = ctypes.CFUNCTYPE(None, ctypes.c_int)
    handler = kind(lambda number: notify())
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, kind], ctypes.c_void_p
    libc.signal(int(signal.SIGABRT), handler)
    _abort_handler = handler
