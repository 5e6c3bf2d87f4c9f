"""Time limits of saves: orbax 0.12 measures them by the wall clock, so a clock that jumps would end the run."""

import time
import types
from typing import Any

from orbax.checkpoint._src.futures import future, signaling_client


def use_monotonic_clock() -> None:
    """Replaces the clock of orbax's time limits in this process by `time.monotonic`."""
    modules: tuple[Any, ...] = (future, signaling_client)
    for module in modules:
        module.time = types.SimpleNamespace(time=time.monotonic)
