"""Time limits of saves do not depend on the wall clock."""

import time

from orbax.checkpoint._src.futures import future

from runners.training.checkpoint_parts.save_limits import use_monotonic_clock

DAY = 24 * 3600


class Jump:
    """Its result is there at once, while the wall clock jumps by a day."""

    def __init__(self, monkeypatch):
        self.monkeypatch = monkeypatch

    def result(self, timeout):
        now = time.time()
        self.monkeypatch.setattr(time, "time", lambda: now + DAY)


def test_a_clock_that_jumps_by_a_day_does_not_end_a_save(monkeypatch):
    use_monotonic_clock()
    ended = []
    # The second result is waited for after the jump, with what is left of the limit.
    future.ChainedFuture([Jump(monkeypatch), Jump(monkeypatch)], lambda: ended.append(True)).result(timeout=600)
    assert ended == [True]
