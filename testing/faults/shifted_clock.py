"""The runner with a wall clock that jumps: `python -m testing.faults.shifted_clock` has the flags of runners.main.

`time.time`, `time.time_ns` and `datetime.datetime.now` are ahead by the seconds in the file CLOCK_FOLDER/I of process
I, which may change during the run; without the file they are not changed. `time.monotonic` remains as it is.
"""

import datetime
import os
import sys
import time
from pathlib import Path

FOLDER = "CLOCK_FOLDER"
_FLAG = "--process_id="


def shift(file: Path) -> None:
    """Replaces the wall clocks of the modules `time` and `datetime` in this process.

    Args:
      file: the file with the number of seconds, which is read at each call.
    """
    real = time.time_ns

    def offset() -> float:
        return float(file.read_text() or 0) if file.exists() else 0.0

    def now_ns() -> int:
        return real() + int(offset() * 1e9)

    class Shifted(datetime.datetime):
        __slots__ = ()  # the size that compiled modules expect

        @classmethod
        def now(cls, tz=None):
            return cls.fromtimestamp(now_ns() / 1e9, tz)

        @classmethod
        def utcnow(cls):
            return cls.now(datetime.UTC).replace(tzinfo=None)

        @classmethod
        def today(cls):
            return cls.now()

    time.time, time.time_ns = lambda: now_ns() / 1e9, now_ns
    datetime.datetime = Shifted


if __name__ == "__main__":
    index = next((each.removeprefix(_FLAG) for each in sys.argv if each.startswith(_FLAG)), "0")
    shift(Path(os.environ[FOLDER]) / index)
    from runners import main  # its modules read the clocks that are shifted now

    sys.exit(main.main())
