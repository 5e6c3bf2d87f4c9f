"""Runs of mpirun that continue on fewer machines while one does not answer, for `launch mpirun --fewest=N`."""

import subprocess
import time
from collections.abc import Callable, Sequence

from launch.children import print_message, run_once

PROCESSES, HOSTS = "{processes}", "{hosts}"  # words of a command that are replaced
ANSWER_SECONDS = 60.0  # in which a machine must run `true`


def slots_of(hosts: str, each: int | None = None) -> dict[str, int]:
    """Returns the number of processes on each machine of a list as mpirun's --host has it: `a:2,b:2`.

    Args:
      hosts: the list; a machine that occurs several times has the sum of its numbers, one without a number has 1.
      each: the number on each machine, instead of those in the list.
    """
    found: dict[str, int] = {}
    for part in hosts.split(","):
        name, _, slots = part.strip().partition(":")
        number = int(slots) if slots.isdecimal() else 1
        found[name] = number + found.get(name, 0) if each is None else each
    return found


class Machines:
    """Runs a command of mpirun on some of its machines, and asks which of them answer.

    Args:
      command: the words of the command; PROCESSES and HOSTS are replaced by those of the run.
      slots: the number of processes on each machine, the same on all.
    """

    def __init__(self, command: Sequence[str], slots: dict[str, int]):
        self._command, self._slots = command, slots
        self._names, self.each = list(slots), max(slots.values())
        self.failures = [f"Machine {name} did not answer" for name in self._names]

    def run(self, places: Sequence[int], received: list[int], stop_now: Callable[[], bool]) -> tuple[int, int | None]:
        """Runs the command on the machines in these places; returns its exit code, and the first that is lost."""
        hosts = {self._names[place]: self._slots[self._names[place]] for place in places}
        values = {PROCESSES: str(sum(hosts.values())), HOSTS: ",".join(f"{name}:{n}" for name, n in hosts.items())}
        code = run_once([values.get(word, word) for word in self._command], received, stop_now)
        if code == 0 or received:
            return code, None
        return code, next((place for place in places if not self._answers(place)), None)

    def are_back(self, places: Sequence[int]) -> bool:
        """Returns whether all machines in these places answer."""
        return all(map(self._answers, places))

    def _answers(self, place: int) -> bool:
        name = self._names[place]
        began = time.monotonic()
        try:
            words = [self._command[0], "-n", "1", "--host", f"{name}:1", "true"]
            done = subprocess.run(words, timeout=ANSWER_SECONDS, capture_output=True, text=True)
        except subprocess.TimeoutExpired:
            print_message(f"Machine {name} has not answered for {time.monotonic() - began:.0f} s.")
            return False
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            print_message(f"Machine {name} does not answer (exit code {done.returncode}: {last}).")
        return done.returncode == 0
