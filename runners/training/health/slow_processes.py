"""Slow processes: each measures its wait for batches and a computation of its own, and process 0 compares them.

All processes take the same time for an update, because its collectives wait for the slowest one. Which one that is can
only be measured outside of updates.
"""

import functools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from layers.specs import P
from runners.processes.coordination import ProcessGroup

SECONDS = 10.0  # at least, between two measurements
FACTOR = 2.0  # above so many times the median a process is slow
FLOORS = {"batches": 0.02, "computation": 0.01}  # seconds above the median below which no process is slow
# Rows of a square matrix, and its products: some milliseconds.
WORK = {"cpu": (512, 4)}
WORK_OF_ACCELERATORS = (4096, 32)
TEXTS = {
    "batches": "its batches took {seconds:.2g} s per update",
    "computation": "a fixed computation on its devices took {seconds:.2g} s",
}
FOLDER = "seconds"  # of the messages of all processes
NEXT = "seconds_after_window"  # key of the window after which all processes measure
AHEAD = 2  # windows from the announcement to the measurement: processes are at most some updates apart

Item = TypeVar("Item")


class Slow(NamedTuple):
    """A process that is slower than the others."""

    process: int
    measure: str  # a key of FLOORS
    seconds: float
    median: float


class SlowProcesses:
    """Measures this process, and reports slow processes in process 0; does nothing if there is one process.

    Args:
      processes: the processes of the run.
      notify: prints a line.
      write: writes a record of (step, name, content) to the log.
    """

    def __init__(
        self,
        processes: ProcessGroup,
        notify: Callable[[str], None],
        write: Callable[[int, str, Mapping[str, Any]], None],
    ):
        self._processes, self._notify, self._write = processes, notify, write
        self._rule, self._judged = Rule(), dict.fromkeys(range(processes.count), 0)
        self._number, self._began, self._waited, self._updates = 0, time.monotonic(), 0.0, 0
        self._windows, self._next = 0, 0  # windows of metrics in this start; the one after which all processes measure

    def next(self, items: Iterator[Item]) -> Item:
        """Returns the next item of the batches of updates, and measures the time."""
        began = time.monotonic()
        item = next(items)
        self._waited += time.monotonic() - began
        self._updates += 1
        return item

    def measure(self, step: int, array: jax.Array) -> None:
        """Measures, sends and compares after a window of metrics, at most every SECONDS; called by all processes.

        All measure after the same window, which process 0 announces: the others wait for a process that measures.

        Args:
          step: number of the last update.
          array: a result of that update, so that the computation does not wait for updates.
        """
        self._windows += 1
        if not self._processes.several or not self._is_due():
            return
        jax.block_until_ready(array)
        self._number += 1
        seconds = {"batches": self._waited / max(self._updates, 1), "computation": computation_seconds()}
        devices = [str(device) for device in jax.local_devices()]
        message = {"number": self._number, "host": self._processes.host, "devices": devices, "seconds": seconds}
        self._processes.put(f"{FOLDER}/{self._processes.index}", json.dumps(message), again=True)
        if self._processes.primary:
            self._compare(step)
        self._began, self._waited, self._updates = time.monotonic(), 0.0, 0

    def _is_due(self) -> bool:
        """Returns whether all processes measure now."""
        seconds = time.monotonic() - self._began
        if self._processes.primary and self._next < self._windows and seconds >= SECONDS:
            self._next = self._windows + AHEAD
            self._processes.put(NEXT, str(self._next), again=True)
        elif not self._processes.primary and seconds >= SECONDS / 2:  # clocks differ
            self._next = int(self._processes.get(NEXT) or 0)
        return self._next == self._windows

    def _compare(self, step: int) -> None:
        """Reports slow processes, if all have sent a message since the last comparison."""
        messages = {index: json.loads(text) for index, text in self._processes.get_all(FOLDER).items()}
        numbers = {index: message["number"] for index, message in messages.items()}
        if any(numbers.get(index, 0) <= before for index, before in self._judged.items()):
            return
        self._judged = numbers
        for slow in self._rule.found({index: message["seconds"] for index, message in messages.items()}):
            message = messages[slow.process]
            text = TEXTS[slow.measure].format(seconds=slow.seconds)
            self._notify(
                f"Process {slow.process} ({message['host']}) is slow: {text}, the median of {len(messages)} processes "
                f"is {slow.median:.2g} s."
            )
            self._write(step, "slow", {**slow._asdict(), "host": message["host"], "devices": message["devices"]})


class Rule:
    """Which processes are slow: those above the median of all in two comparisons in a row; each is found once."""

    def __init__(self) -> None:
        self._before: set[tuple[int, str]] = set()
        self._known: set[tuple[int, str]] = set()

    def found(self, seconds: Mapping[int, Mapping[str, float]]) -> list[Slow]:
        """Returns the processes that have become slow.

        Args:
          seconds: by process, the seconds of each measure. The median of an even number is the lower one of the two.
        """
        outliers = {(slow.process, slow.measure): slow for slow in _outliers(seconds)}
        new = [slow for key, slow in outliers.items() if key in self._before and key not in self._known]
        self._known = (self._known & outliers.keys()) | {(slow.process, slow.measure) for slow in new}
        self._before = set(outliers)
        return new


def _outliers(seconds: Mapping[int, Mapping[str, float]]) -> Iterator[Slow]:
    for measure, floor in FLOORS.items():
        of_process = {index: values[measure] for index, values in sorted(seconds.items())}
        median = statistics.median_low(of_process.values())
        for index, value in of_process.items():
            if value > FACTOR * median and value - median > floor:
                yield Slow(index, measure, value, median)


def computation_seconds() -> float:
    """Returns the seconds of matrix products on all devices of this process, without collectives; the best of two."""
    devices = np.array(jax.local_devices())
    size, products = WORK.get(devices[0].platform, WORK_OF_ACCELERATORS)
    with jax.set_mesh(jax.sharding.Mesh(devices, ("device",))):
        times = []
        for _ in range(3):  # the first one compiles
            began = time.perf_counter()
            jax.block_until_ready(_computation(size, products))
            times.append(time.perf_counter() - began)
    return min(times[1:])


@functools.partial(jax.jit, static_argnums=(0, 1))
def _computation(size: int, products: int) -> jax.Array:
    def on_device() -> jax.Array:
        x = jnp.full((size, size), 1 / size, jnp.bfloat16)
        return jax.lax.fori_loop(0, products, lambda _, y: y @ x, x)[None, 0, :1]

    return jax.shard_map(on_device, in_specs=(), out_specs=P("device"), check_vma=False)()
