"""Durations as text."""

import pytest

from registry.records.quantities import duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (0.25, "0.2 s"), (59, "59 s"), (61, "1 min 1 s"), (3600, "1 h"), (3605, "1 h"), (90_061, "1 d 1 h")],
)
def test_a_duration_in_its_two_largest_units(seconds, text):
    assert duration(seconds) == text
