"""Starts a command again after it failed.

python -m launch.supervisor --restarts=5 --workdir=runs/NAME -- COMMAND ...

`--restarts=N` of the targets `local`, `mpirun` and `tpu run` uses it (docs/howto/launch.md).
"""

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from launch.children import print_message, run_once
from launch.fewer_machines import Machines, slots_of
from launch.fewer_processes import FewerProcesses
from layers.errors import UsageError, first_line
from registry.runs.state import has_finished, last_saved
from runners.flags import Parser, exit_code
from tasks.storage.files import place

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
USAGE_ERROR = 2  # the exit code of a command that would fail again
WAITS = (1, 120)  # seconds before a restart, by the number of failures without a new checkpoint; no restart after more

Start = Callable[[list[int]], int]


def supervise(start: Start, workdir: str | None, restarts: int, sleep: Callable[[float], None] = time.sleep) -> int:
    """Calls `start` until it returns 0; returns the last exit code.

    It is not called again after a usage error, after this process has received a signal to stop, after three failures
    without a new checkpoint between them, or after `restarts` restarts. The first restart after a checkpoint follows
    quickly; the second one waits, because a machine or a store may be away for a while.

    Args:
      start: starts the command, passes the signals that its argument will contain on to it, and returns its exit code.
      workdir: the run folder; None for a command without one, which counts as one without checkpoints.
      restarts: the largest number of restarts.
      sleep: waits for some seconds.
    """
    failures, before = 0, None
    with received_signals() as received:
        for done in range(restarts + 1):
            code = start(received)
            if code in (0, USAGE_ERROR) or received or not restarts:
                return code
            saved = last_checkpoint(workdir, before)
            failures = failures + 1 if saved == before else 1
            before = saved
            where = "without a checkpoint" if saved is None else f"after the checkpoint of step {saved}"
            failed = f"The run ended with exit code {code} {where}"
            if failures > len(WAITS):
                print_message(f"{failed}, for the {failures}rd time. It is not started again.")
                return code
            if done == restarts:
                break
            seconds = WAITS[failures - 1]
            print_message(f"{failed}. Restart {done + 1} of {restarts} in {seconds} s.")
            for _ in range(10 * seconds):
                if received:
                    return code
                sleep(0.1)
    print_message(f"{failed}. --restarts={restarts} allows no further restart.")
    return code


def last_checkpoint(workdir: str | None, before: int | None) -> int | None:
    """Returns the step of the last checkpoint, None without one; `before` if the folder cannot be read."""
    if workdir is None:
        return None
    try:
        return last_saved(place(workdir))
    except Exception as error:  # of any store
        print_message(f"The checkpoints in '{workdir}' cannot be read ({first_line(error)}).")
        return before


def is_complete(workdir: str | None) -> bool:
    """Returns whether the run in a folder has recorded that it is complete."""
    return workdir is not None and has_finished(place(workdir))


@contextlib.contextmanager
def received_signals() -> Iterator[list[int]]:
    """Inside, signals to stop are appended to a list instead of ending this process."""
    received: list[int] = []
    before = {number: signal.signal(number, lambda got, _: received.append(got)) for number in SIGNALS}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(arguments: Sequence[str]) -> int:
    """Runs the command after `--`; returns its exit code."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    parser = Parser("launch.supervisor", __doc__)
    parser.add_argument("--restarts", type=int, default=0, metavar="N")
    parser.add_argument("--workdir", metavar="FOLDER")
    parser.add_argument("--fewest", type=int, metavar="N", help="processes of mpirun to continue with; needs --hosts")
    parser.add_argument("--hosts", metavar="A:N,B:N", help="machines of mpirun, which replace {hosts} in the command")
    options = parser.parse_known(arguments[:end])
    command = arguments[end + 1 :]
    if not command:
        raise UsageError("launch.supervisor needs a command. Add it after `--`.")
    if options.restarts < 0:
        raise UsageError(f"--restarts must be at least 0 (got {options.restarts}).")
    if (options.fewest is None) != (options.hosts is None):
        raise UsageError("--fewest and --hosts need each other. Give both or neither.")
    start: Start = lambda received: run_once(command, received)
    if options.fewest is not None:
        machines = Machines(command, slots_of(options.hosts))
        start = FewerProcesses(
            machines.run,
            len(machines.slots),
            machines.describe,
            -(-options.fewest // machines.each),
            lambda before: last_checkpoint(options.workdir, before),
            lambda: is_complete(options.workdir),
            each=machines.each,
            are_back=machines.are_back,
        )
    return supervise(start, options.workdir, options.restarts)


def command_of(
    restarts: int, workdir: str | None, python: str, fewest: int | None = None, hosts: str | None = None
) -> list[str]:
    """Returns the words before a command that supervise it; none without restarts."""
    if not restarts:
        return []
    folder = [] if workdir is None else [f"--workdir={workdir}"]
    fewer = [] if fewest is None else [f"--fewest={fewest}", f"--hosts={hosts}"]
    return [python, "-m", "launch.supervisor", f"--restarts={restarts}", *folder, *fewer, "--"]


if __name__ == "__main__":
    sys.exit(exit_code(run, None))
