"""Runs of mpirun that continue on fewer machines while some do not answer, for `launch mpirun --fewest=N`."""

import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence

from launch.children import end_with_parent, print_message, run_once
from layers.errors import UsageError

PROCESSES, HOSTS = "{processes}", "{hosts}"  # words of a command that are replaced
ANSWER_SECONDS = 60.0  # in which a machine must run `true`


def slots_of(hosts: str, each: int | None = None) -> dict[str, int]:
    """Returns the number of processes on each machine of a list as mpirun's --host has it: `a:2,b:2`.

    Args:
      hosts: the list; a machine that occurs several times has the sum of its numbers, one without a number has 1.
      each: the number on each machine, instead of those in the list.
    Raises:
      UsageError: the list has another form.
    """
    found: dict[str, int] = {}
    for part in hosts.split(","):
        parts = re.fullmatch(r"\s*([\w.-]+)(?::([1-9]\d*))?\s*", part)
        if parts is None:
            raise UsageError(f"--hosts must be like A:N,B:N (got '{hosts}').")
        name, number = parts[1], int(parts[2] or 1)
        found[name] = number + found.get(name, 0) if each is None else each
    return found


def hosts_of(slots: Mapping[str, int]) -> str:
    """Returns the list that `slots_of` reads."""
    return ",".join(f"{name}:{number}" for name, number in slots.items())


class Machines:
    """Runs a command of mpirun on some of its machines, and asks which of them answer.

    Args:
      command: the words of the command; PROCESSES and HOSTS are replaced by those of the run.
      slots: the number of processes on each machine, the same on all.
    """

    def __init__(self, command: Sequence[str], slots: dict[str, int]):
        self._command, self.slots = command, slots
        self._names, self.each = list(slots), max(slots.values())
        self._received: Sequence[int] = ()  # signals that end the questions to machines

    def run(self, places: Sequence[int], received: list[int], stop_now: Callable[[], bool]) -> tuple[int, list[int]]:
        """Runs the command on the machines in these places; returns its exit code, and the machines that are lost."""
        hosts = {self._names[place]: self.slots[self._names[place]] for place in places}
        values = {PROCESSES: str(sum(hosts.values())), HOSTS: hosts_of(hosts)}
        self._received = received
        # mpirun passes SIGUSR1 on at once. After SIGTERM it waits, and ends with an exit code of its own.
        command = [values.get(word, word) for word in self._command]
        code = run_once(command, received, stop_now, stop_by=signal.SIGUSR1)
        return code, [] if code == 0 or received else self._lost(places)

    def are_back(self, places: Sequence[int]) -> bool:
        """Returns whether all machines in these places answer."""
        return not self._lost(places)

    def describe(self, places: Sequence[int]) -> str:
        """Returns a message that these machines are lost, without a period."""
        return f"{self._named(places)} did not answer"

    def _named(self, places: Sequence[int]) -> str:
        names = ", ".join(self._names[place] for place in places)
        return f"{'Machines' if len(places) > 1 else 'Machine'} {names}"

    def _lost(self, places: Sequence[int]) -> list[int]:
        """Returns those of these places whose machines do not run `true`; all of them after a signal."""
        with tempfile.TemporaryFile() as errors:
            asked = {place: self._ask(place, errors) for place in places}
            end = time.monotonic() + ANSWER_SECONDS
            while any(process.poll() is None for process in asked.values()):
                if self._received or time.monotonic() > end:
                    break
                time.sleep(0.05)
            lost = [place for place, process in asked.items() if process.poll() != 0]
            for process in asked.values():
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines()
        if lost and not self._received:
            verb = "do not answer" if len(lost) > 1 else "does not answer"
            reason = f" ({lines[-1]})" if lines else f" within {ANSWER_SECONDS:.0f} s"
            print_message(f"{self._named(lost)} {verb}{reason}.")
        return lost

    def _ask(self, place: int, errors: object) -> subprocess.Popen:
        """Starts `true` on a machine; in a new session, so that Ctrl-C in the terminal does not reach it."""
        words = [self._command[0], "-n", "1", "--host", f"{self._names[place]}:1", "true"]
        files: dict = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": errors}
        return subprocess.Popen(words, start_new_session=True, preexec_fn=end_with_parent, **files)
