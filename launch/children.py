"""Processes that the launcher starts: signals, exit codes, messages."""

import ctypes
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence

PR_SET_PDEATHSIG = 1  # prctl(2)
# Loaded now: a child of a process with threads must not load it.
PRCTL = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def end_with_parent() -> None:
    """Makes this process receive SIGTERM when its parent ends, even by SIGKILL; for Popen's `preexec_fn`, on Linux."""
    if PRCTL is not None:
        PRCTL(PR_SET_PDEATHSIG, signal.SIGTERM)


def run_once(
    command: Sequence[str],
    received: Sequence[int],
    stop_now: Callable[[], bool] = lambda: False,
    stop_by: int = signal.SIGTERM,
) -> int:
    """Runs a command to its end, and passes signals on to it; returns its exit code.

    Args:
      command: the words of the command.
      received: signals that this process has received; each is sent to the command, once.
      stop_now: called every second; once it is True, the command receives the signal `stop_by`.
      stop_by: the number of the signal.
    """
    # In a new session, so that it receives Ctrl-C only once, from this process.
    process = subprocess.Popen(command, start_new_session=True, preexec_fn=end_with_parent)
    signals = Signals(received, stop_now, stop_by)
    while (code := process.poll()) is None:
        signals.send([process])
        time.sleep(0.05)
    return shell_code(code)


class Signals:
    """Sends processes the signals that this process has received, each once, and one more when they are to stop.

    Args:
      received: signals that this process has received so far.
      stop_now: called every second until it is True.
      stop_by: the number of the signal that processes then receive.
    """

    def __init__(self, received: Sequence[int], stop_now: Callable[[], bool], stop_by: int = signal.SIGTERM):
        self._received, self._stop_now, self._stop_by = received, stop_now, stop_by
        self._passed, self._is_stopping, self._looked = 0, False, time.monotonic()

    def send(self, processes: Iterable[subprocess.Popen]) -> None:
        """Sends what is new; called again and again while the processes run."""
        new = list(self._received[self._passed :])
        self._passed += len(new)
        if not self._is_stopping and time.monotonic() - self._looked > 1:
            self._is_stopping, self._looked = self._stop_now(), time.monotonic()
            new += [self._stop_by] * self._is_stopping
        for process in processes:
            for number in new:
                process.send_signal(number)


def shell_code(code: int) -> int:
    """Returns an exit code as shells have it: 128 plus the signal's number for a process that was killed."""
    return code if code >= 0 else 128 - code


def print_message(message: str) -> None:
    """Prints a line of the launcher to standard error."""
    print(f"vortaro: {message}", file=sys.stderr, flush=True)
