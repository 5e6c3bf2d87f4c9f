"""Examples in another process with limits of time and memory: hangs and crashes are results of an example, too."""

import logging
import multiprocessing
import os
import resource
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from testing.fuzz.examples import OTHER, Outcome, Watch, run

SECONDS = 20.0  # of an example
START_SECONDS = 180.0  # until the first example: imports, compilation, valid examples, and those that are skipped
MEMORY = 2 << 30  # bytes of address space that examples may add
MOST_RESTARTS = 20  # after which a kind ends


def supervise(kind: str, mutations: int, seed: int, report: Callable[[Outcome], object], numbers: range) -> None:
    """Reads the mutated examples of a kind in processes, a new one after each hang or crash.

    Args:
      kind: a name in `testing.fuzz.kinds.KINDS`.
      mutations: the number of examples.
      seed: decides the examples.
      report: called with each outcome, also of examples that end their process.
      numbers: the examples that are read.
    """
    for _ in range(MOST_RESTARTS):
        failed = _one_process(kind, mutations, seed, report, numbers)
        if failed is None:
            return
        numbers = range(failed + 1, numbers.stop)


def _one_process(
    kind: str, mutations: int, seed: int, report: Callable[[Outcome], object], numbers: range
) -> int | None:
    """Returns the number of the example that has ended the process; None if it has read all."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(kind, mutations, seed, numbers, theirs), daemon=True)
    process.start()
    theirs.close()
    current, wrong, limit = numbers.start, "", START_SECONDS
    while not wrong:
        if not ours.poll(limit):
            wrong = f"no end after {limit:.0f} s"
            break
        try:
            message = ours.recv()
        except EOFError:
            process.join()
            wrong = f"the process has ended with exit code {process.exitcode}"
            break
        if isinstance(message, str):
            raise AssertionError(message)
        if message is None:
            process.join()
            return None
        if isinstance(message, Outcome):
            report(message)
        else:
            current, limit = message, SECONDS
    process.kill()
    process.join()
    report(Outcome(current, OTHER, wrong))
    return current


def _work(kind: str, mutations: int, seed: int, numbers: range, pipe: Connection) -> None:
    """Reads examples and sends the number of each before, and its outcome after; None at the end."""
    _silence()
    from testing.fuzz.kinds import KINDS

    state: dict[str, Any] = {}

    def begin(number: int) -> None:
        if not state:
            state["limited"] = _limit_memory()
        pipe.send(number)

    try:
        run(KINDS[kind], mutations, seed, pipe.send, numbers=numbers, begin=begin, watch=Watch())
    except BaseException:  # of the valid example or of the mutation: an error of this package
        pipe.send(traceback.format_exc())
    else:
        pipe.send(None)


def _silence() -> None:
    """Sends what libraries print to the null device."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")


def _limit_memory() -> bool:
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, resource.RLIM_INFINITY))
    return True
