"""The clock used for time limits and waits. Tests pass a fake clock and do not wait."""

import threading
import time


class Clock:
    """The monotonic clock of this machine (seconds since an arbitrary fixed moment), and waits measured by it."""

    def now(self) -> float:
        """Returns the time in seconds; it never decreases."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Waits for `seconds`."""
        time.sleep(seconds)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Waits for an event for at most `seconds`; returns whether it is set."""
        return event.wait(seconds)


CLOCK = Clock()
