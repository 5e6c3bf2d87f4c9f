"""One of several processes: `python -m tests.launch.stand_in WHAT ... --process_id=I`, in place of the runner.

WHAT: `say` its arguments; `fail` with code 3 in process 1; `die` by a signal there, or `linger` when told to end;
`wait` to be told to end. Or `start FOLDER COUNT WHAT`: all of them, by the launcher.
"""

import os
import signal
import sys
import time
from pathlib import Path


def _wait(seconds: float) -> list[int]:
    """Waits until told to end; returns the signals that came until shortly after."""
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _: told.append(got))
    print("up", flush=True)
    end = time.monotonic() + seconds
    while time.monotonic() < end and not told:
        time.sleep(0.02)
    time.sleep(0.3)
    return told


def main(what: str, place: list[str]) -> int:
    """Does what it is told; returns the exit code."""
    index = int(place[-1].partition("=")[2])
    print(f"process {index} of {place}", flush=True)
    if what == "wait":
        print(f"told {_wait(30)}", flush=True)
    if what == "linger" and index != 1:
        time.sleep(60)
    if what in ("fail", "linger") and index == 1:
        return 3
    if what == "fail":
        time.sleep(0.5)
        return 1
    if what == "die" and index == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "start":
        from launch import local

        folder, count, what = sys.argv[2:]
        local.PATIENCE = 1 if what == "linger" else local.PATIENCE
        sys.exit(local.processes([sys.executable, "-m", "tests.launch.stand_in", what], int(count), Path(folder)))
    sys.exit(main(sys.argv[1], sys.argv[2:]))
