"""Runs that continue with fewer processes while a place cannot run its own, for `--fewest=N`."""

from collections.abc import Callable, Sequence

from launch.children import print_message

# Runs processes in places: (places, received signals, whether to stop now) -> (exit code, places that have failed; none
# if all failed at once). If the function returns True, all processes receive a signal, save and exit.
Run = Callable[[Sequence[int], list[int], Callable[[], bool]], tuple[int, Sequence[int]]]
Saved = Callable[[int | None], int | None]


class FewerProcesses:
    """Starts a run in all places, or in half of them or fewer if the process of a place fails again and again.

    A place is lost if it is among those that have failed in two starts without a new checkpoint between them. The run
    then continues with the most processes that are a divisor of all, so that they share the rows of a batch evenly.
    After a new checkpoint it is stopped and started in all places again; if a place is lost again, the next attempt
    follows after twice as many checkpoints.

    Args:
      run: starts processes and waits for them.
      count: number of places.
      describe: returns a message that some places have failed, without a period.
      fewest: the smallest number of places to continue in.
      saved: returns the step of the last checkpoint, None if there is none; its argument if that cannot be read.
      has_finished: returns whether the run has recorded that it is complete.
      each: number of processes in each place.
      are_back: returns whether lost places can be tried again.
    """

    def __init__(
        self,
        run: Run,
        count: int,
        describe: Callable[[Sequence[int]], str],
        fewest: int,
        saved: Saved,
        has_finished: Callable[[], bool] = lambda: False,
        *,
        each: int = 1,
        are_back: Callable[[Sequence[int]], bool] = lambda lost: True,
    ):
        self._has_finished, self._are_back, self._each = has_finished, are_back, each
        self._run, self._describe, self._fewest, self._saved = run, describe, fewest, saved
        self._count = count
        self._lost: set[int] = set()
        self._suspects: set[int] = set()  # places that failed last
        self._failed_after: int | None = None  # step of the last checkpoint then
        self._patience = 1  # checkpoints until the lost places are tried again
        self._last: int | None = None  # step of the last checkpoint that was seen

    def __call__(self, received: list[int]) -> int:
        """Runs to the end, to a signal, or to a failure that fewer processes do not avoid; returns the exit code."""
        while True:
            places = self._places()
            is_complete = len(places) == self._count
            self._last = self._saved(self._last)
            checkpoints = _Checkpoints(self._saved, self._patience, self._last, self._lost_are_back)
            stop_now = (lambda: False) if is_complete else checkpoints.are_enough
            code, failed = self._run(places, received, stop_now)
            # Whatever the exit code: mpirun may not pass on that of processes that a signal has stopped.
            if checkpoints.has_stopped and not failed and not received and not self._has_finished():
                print_message(
                    f"The run saved a checkpoint and is started with all {self._each * self._count} processes again."
                )
                self._lost, self._patience = set(), 2 * self._patience
                continue
            if code == 0 or received or not self._are_lost(set(failed)):
                return code

    def _are_lost(self, failed: set[int]) -> bool:
        """Notes that places have failed; returns whether the run continues without those that failed before, too."""
        self._last = self._saved(self._last)
        again = failed & self._suspects if self._last == self._failed_after else set[int]()
        self._suspects, self._failed_after = failed, self._last
        if not again:
            return False
        self._lost |= again
        left = self._places()
        if len(left) < self._fewest:
            self._lost -= again
            return False
        number = self._each * len(left)
        others = f"{number} process{'es' if number > 1 else ''}"
        message = self._describe(sorted(again))
        print_message(f"{message} again without a new checkpoint. The run continues with {others}.")
        return True

    def _lost_are_back(self) -> bool:
        return self._are_back(sorted(self._lost))

    def _places(self) -> list[int]:
        left = [place for place in range(self._count) if place not in self._lost]
        number = max((n for n in range(1, len(left) + 1) if self._count % n == 0), default=0)
        return left[:number]


class _Checkpoints:
    """Counts new checkpoints of a run."""

    def __init__(self, saved: Saved, wanted: int, last: int | None, are_back: Callable[[], bool]):
        self._saved, self._wanted, self._last, self._new, self._are_back = saved, wanted, last, 0, are_back
        self.has_stopped = False  # whether the run was stopped because of them

    def are_enough(self) -> bool:
        """Looks for a new checkpoint; returns whether there have been as many as wanted and all places are back."""
        if (step := self._saved(self._last)) != self._last:
            self._last, self._new = step, self._new + 1
            self.has_stopped = self._new >= self._wanted and self._are_back()
        return self.has_stopped
