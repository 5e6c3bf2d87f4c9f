"""One of several processes: `python -m tests.support.stand_in WHAT ... --process_id=I`, in place of the runner.

WHAT: `say` its arguments; `fail` with code 3 in process 1; `die` by a signal there, or `linger` when told to end;
`wait` to be told to end. Or `start FOLDER COUNT WHAT`: all of them, by the launcher.
"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path


def _wait(seconds: float) -> list[int]:
    """Waits until told to end; returns the signals that came until shortly after."""
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _: signals.append(got))
    print("up", flush=True)
    end = time.monotonic() + seconds
    while time.monotonic() < end and not signals:
        time.sleep(0.02)
    time.sleep(0.3)
    return signals


def _first_pid() -> Path:
    """The file with the process id of the one that fails first."""
    return Path(os.environ["FIRST_PID"])


def _wait_for_the_first() -> None:
    """Waits until the launcher has noticed the end of the process that fails first."""
    while not (_first_pid().exists() and _first_pid().read_text()):
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.kill(int(_first_pid().read_text()), 0)  # known until its parent has noticed its end
            time.sleep(0.02)


def main(what: str, place: list[str]) -> int:
    """Does what it is told; returns the exit code."""
    index = int(place[-1].partition("=")[2])
    print(f"process {index} of {place}", flush=True)
    if what == "wait":
        print(f"told {_wait(600)}", flush=True)
    if what == "linger" and index != 1:
        time.sleep(600)
    if what in ("fail", "linger") and index == 1:
        _first_pid().write_text(str(os.getpid()))
        return 3
    if what == "fail":
        _wait_for_the_first()
        return 1
    if what == "die" and index == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "start":
        from launch import local

        folder, count, what = sys.argv[2:]
        os.environ["FIRST_PID"] = f"{folder}/first_pid"
        local.PATIENCE = 1 if what == "linger" else local.PATIENCE
        sys.exit(local.processes([sys.executable, "-m", "tests.support.stand_in", what], int(count), Path(folder)))
    sys.exit(main(sys.argv[1], sys.argv[2:]))
