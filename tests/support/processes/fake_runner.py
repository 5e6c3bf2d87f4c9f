"""One of several processes in place of the runner.

python -m tests.support.processes.fake_runner ACTION ... --process_id=I

ACTION: `print` the arguments; in process 1 `fail` with code 3, or `die` by a signal; `linger` after a signal to end;
`wait` for such a signal. `start FOLDER COUNT ACTION` starts all processes by the launcher.
"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path


def _wait(seconds: float) -> list[int]:
    """Waits for a signal to end; returns the signals received until shortly after."""
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: signals.append(received))
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


def main(action: str, flags: list[str]) -> int:
    """Performs the action; returns the exit code."""
    index = int(flags[-1].partition("=")[2])
    print(f"process {index} of {flags}", flush=True)
    if action == "wait":
        print(f"signals {_wait(600)}", flush=True)
    if action == "linger" and index != 1:
        time.sleep(600)
    if action in ("fail", "linger") and index == 1:
        _first_pid().write_text(str(os.getpid()))
        return 3
    if action == "fail":
        _wait_for_the_first()
        return 1
    if action == "die" and index == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "start":
        from launch import local
        from launch.supervisor import received_signals

        folder, count, action = sys.argv[2:]
        os.environ["FIRST_PID"] = f"{folder}/first_pid"
        local.PATIENCE = 1 if action == "linger" else local.PATIENCE
        line = [sys.executable, "-m", "tests.support.processes.fake_runner", action]
        with received_signals() as received:
            sys.exit(local.processes(line, Path(folder), local.PATIENCE, range(int(count)), received)[0])
    sys.exit(main(sys.argv[1], sys.argv[2:]))
