"""The time that waits are measured by; tests pass a clock of their own and wait for nothing."""

import threading
import time


class Clock:
    """Seconds of this machine since some fixed moment, and waits in them."""

    def now(self) -> float:
        """Returns the seconds, which never run backwards."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Waits for so many seconds."""
        time.sleep(seconds)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Waits for an event, for so many seconds at most; returns whether it is set."""
        return event.wait(seconds)


CLOCK = Clock()
