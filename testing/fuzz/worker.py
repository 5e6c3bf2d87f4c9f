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
from testing.fuzz.kind import Kind

SECONDS = 20.0  # of an example
START_SECONDS = 180.0  # until the first example: imports, compilation, valid examples, and those that are skipped
MEMORY = 2 << 30  # bytes of address space that the examples of a process may add
PER_PROCESS = 2000  # examples: libraries keep memory (tensorstore 0.3 MiB of each checkpoint that is restored)
MOST_FAILURES = 20  # hangs and crashes, after which a kind ends


def find_kind(name: str) -> Kind:
    """Returns the kind of a name in `testing.fuzz.kinds`, which imports the libraries of all readers."""
    from testing.fuzz.kinds import KINDS

    return KINDS[name]


def supervise(
    kind: str,
    mutations: int,
    seed: int,
    report: Callable[[Outcome], object],
    numbers: range,
    *,
    find: Callable[[str], Kind] = find_kind,
    seconds: float = SECONDS,
) -> None:
    """Reads the mutated examples of a kind in processes: a new one after PER_PROCESS, and after each hang or crash.

    Args:
      kind: the name of the kind.
      mutations: the number of examples.
      seed: decides the examples.
      report: called with each outcome, also of examples that end their process.
      numbers: the examples that are read.
      find: returns the kind of a name; a function of a module, because it is called in the processes.
      seconds: limit of an example.
    """
    failures = 0
    while numbers and failures < MOST_FAILURES:
        part = numbers[:PER_PROCESS]
        failed = _one_process((find, kind, mutations, seed, part), report, seconds)
        if failed is not None:
            report(failed)
            failures += 1
        numbers = range(part.stop if failed is None else failed.number + 1, numbers.stop)


def _one_process(arguments: tuple[Any, ...], report: Callable[[Outcome], object], seconds: float) -> Outcome | None:
    """Returns the outcome of the example that has ended the process; None if it has read all that exist."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(*arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    numbers: range = arguments[-1]
    number, limit = numbers.start, START_SECONDS
    try:
        while ours.poll(limit):
            message = ours.recv()
            if isinstance(message, str):
                raise AssertionError(message)
            if message is None:
                return None
            if isinstance(message, Outcome):
                report(message)
                if message.number == numbers[-1]:
                    return None
            else:
                number, limit = message, seconds
        return Outcome(number, OTHER, f"no end after {limit:.0f} s")
    except EOFError:
        process.join()
        return Outcome(number, OTHER, f"the process has ended with exit code {process.exitcode}")
    finally:
        process.kill()
        process.join()


def _work(find: Callable[[str], Kind], name: str, mutations: int, seed: int, numbers: range, pipe: Connection) -> None:
    """Reads examples and sends the number of each before, and its outcome after; at the end None, or a traceback."""
    _silence()
    is_limited = False

    def begin(number: int) -> None:
        nonlocal is_limited
        is_limited = is_limited or _limit_memory()
        pipe.send(number)

    try:
        run(find(name), mutations, seed, pipe.send, numbers=numbers, begin=begin, watch=Watch())
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
