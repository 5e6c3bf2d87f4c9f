"""Runs that continue with fewer processes while one cannot be started, for `launch local --fewest=N`."""

from collections.abc import Callable, Sequence

from launch.supervisor import print_message

# Runs processes in places: (places, received signals, whether to stop now) -> (exit code, the place that failed first;
# None if several failed at once). If the function returns True, all processes receive SIGTERM, save and exit with 0.
Run = Callable[[Sequence[int], list[int], Callable[[], bool]], tuple[int, int | None]]
Saved = Callable[[int | None], int | None]


class FewerProcesses:
    """Starts a run in all places, or in half of them or fewer if the process of a place fails again and again.

    A place is lost if its process is the first to fail in two starts without a new checkpoint between them. The run
    then continues with the most processes that are a divisor of all, so that they share the rows of a batch evenly.
    After a new checkpoint it is stopped and started in all places again; if a place is lost again, the next attempt
    follows after twice as many checkpoints.

    Args:
      run: starts processes and waits for them.
      count: number of places.
      fewest: the smallest number of processes to continue with.
      saved: returns the step of the last checkpoint, None if there is none; its argument if that cannot be read.
      has_finished: returns whether the run has recorded that it is complete.
    """

    def __init__(
        self, run: Run, count: int, fewest: int, saved: Saved, has_finished: Callable[[], bool] = lambda: False
    ):
        self._has_finished = has_finished
        self._run, self._count, self._fewest, self._saved = run, count, fewest, saved
        self._lost: set[int] = set()
        self._suspect: tuple[int, int | None] | None = None  # the place that failed last, and the last checkpoint then
        self._patience = 1  # checkpoints until the lost places are tried again
        self._last: int | None = None  # step of the last checkpoint that was seen

    def __call__(self, received: list[int]) -> int:
        """Runs to the end, to a signal, or to a failure that fewer processes do not avoid; returns the exit code."""
        while True:
            places = self._places()
            is_complete = len(places) == self._count
            self._last = self._saved(self._last)
            checkpoints = _Checkpoints(self._saved, self._patience, self._last)
            stop_now = (lambda: False) if is_complete else checkpoints.are_enough
            code, first = self._run(places, received, stop_now)
            if code == 0 and checkpoints.has_stopped and not received and not self._has_finished():
                print_message(f"The run saved a checkpoint and is started with all {self._count} processes again.")
                self._lost, self._patience = set(), 2 * self._patience
                continue
            if code == 0 or received or first is None or not self._is_lost(first):
                return code

    def _is_lost(self, first: int) -> bool:
        """Notes that the process of a place failed first; returns whether the run continues without it."""
        self._last = self._saved(self._last)
        failure = (first, self._last)
        if failure != self._suspect:
            self._suspect = failure
            return False
        self._lost.add(first)
        left = self._places()
        if len(left) < self._fewest:
            self._lost.discard(first)
            return False
        others = f"{len(left)} process{'es' if len(left) > 1 else ''}"
        print_message(f"Process {first} failed first again without a new checkpoint. The run continues with {others}.")
        return True

    def _places(self) -> list[int]:
        left = [place for place in range(self._count) if place not in self._lost]
        number = max((n for n in range(1, len(left) + 1) if self._count % n == 0), default=0)
        return left[:number]


class _Checkpoints:
    """Counts new checkpoints of a run."""

    def __init__(self, saved: Saved, wanted: int, last: int | None):
        self._saved, self._wanted, self._last, self._new = saved, wanted, last, 0
        self.has_stopped = False  # whether the run was stopped because of them

    def are_enough(self) -> bool:
        """Looks for a new checkpoint; returns whether there have been as many as wanted."""
        if (step := self._saved(self._last)) != self._last:
            self._last, self._new = step, self._new + 1
        self.has_stopped = self._new >= self._wanted
        return self.has_stopped
