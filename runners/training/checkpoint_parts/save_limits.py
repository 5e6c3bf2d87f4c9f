"""Saves of orbax 0.12: their time limits by a clock that does not jump, and their errors as soon as they occur."""

import time
import types
from typing import Any

import orbax.checkpoint as ocp
from orbax.checkpoint._src.futures import future, signaling_client


def use_monotonic_clock() -> None:
    """Replaces the clock of orbax's time limits in this process by `time.monotonic`."""
    modules: tuple[Any, ...] = (future, signaling_client)
    for module in modules:
        module.time = types.SimpleNamespace(time=time.monotonic)


class Manager(ocp.CheckpointManager):
    """Orbax's manager without its preemption check, whose step numbers would conflict with the check of the loop."""

    _failure: Exception | None = None  # of the save under way, in this process

    def reached_preemption(self, step: int) -> bool:
        return False

    def _wait_for_checkpointers(self) -> None:
        try:
            super()._wait_for_checkpointers()
        except Exception as error:
            self._failure = error
            raise

    def wait(self) -> None:
        """Waits until the last save is complete.

        Raises:
          Exception: it failed in this process. The others may wait for this one, and orbax for them, for 20 minutes.
        """
        while self.is_saving_in_progress():
            if self._failure is not None:
                raise self._failure
            time.sleep(0.01)
        self.wait_until_finished()
