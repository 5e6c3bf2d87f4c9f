"""A clock for tests of waits: time passes as soon as somebody waits, and things happen when their time comes."""

from collections.abc import Callable

from tasks.clock import Clock


class FakeClock(Clock):
    """Seconds that pass only in `sleep` and `wait`."""

    def __init__(self):
        self.seconds = 0.0
        self._plan: list[tuple[float, Callable[[], object]]] = []

    def at(self, seconds: float, work: Callable[[], object]) -> None:
        """Plans something for a moment; what is planned for one moment happens in the order of the calls."""
        self._plan.append((seconds, work))

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        until = self.seconds + seconds
        while due := [entry for entry in self._plan if entry[0] <= until]:
            first = min(due, key=lambda entry: entry[0])
            self._plan.remove(first)
            self.seconds = max(self.seconds, first[0])
            first[1]()
        self.seconds = max(self.seconds, until)

    def wait(self, event, seconds: float) -> bool:
        if not event.is_set():
            self.sleep(seconds)
        return event.is_set()
