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
    passed, is_stopping, looked = 0, False, time.monotonic()
    while (code := process.poll()) is None:
        passed = pass_on(received, passed, [process])
        if not is_stopping and time.monotonic() - looked > 1:
            is_stopping, looked = stop_now(), time.monotonic()
            pass_on([stop_by] * is_stopping, 0, [process])
        time.sleep(0.05)
    return shell_code(code)


def pass_on(received: Sequence[int], passed: int, processes: Iterable[subprocess.Popen]) -> int:
    """Sends the signals after the first `passed` ones to processes; returns how many have been passed on now."""
    new = received[passed:]
    for number in new:
        for process in processes:
            process.send_signal(number)
    return passed + len(new)


def shell_code(code: int) -> int:
    """Returns an exit code as shells have it: 128 plus the signal's number for a process that was killed."""
    return code if code >= 0 else 128 - code


def print_message(message: str) -> None:
    """Prints a line of the launcher to standard error."""
    print(f"vortaro: {message}", file=sys.stderr, flush=True)
