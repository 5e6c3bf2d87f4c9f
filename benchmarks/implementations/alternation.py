"""Alternating measurement of implementations, A B A B ...: each in its own process, one active at a time."""

import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[2]
SMALL_PAGES = (("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0"),)


@dataclasses.dataclass(frozen=True)
class Implementation:
    """An implementation to measure, with its name in the tables."""

    name: str
    module: str  # of benchmarks.implementations
    options: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = (("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),)  # huge pages


class Worker:
    """Process of a implementation."""

    def __init__(self, implementation: Implementation, arguments: Sequence[str], log: Path):
        self.implementation, self.log = implementation, log
        command = [
            sys.executable,
            "-m",
            "benchmarks.implementations.worker",
            arguments[0],
            implementation.module,
            *arguments[1:],
        ]
        # Later processes load programs that the first ones compiled, unless the caller sets a cache.
        cache = {"JAX_COMPILATION_CACHE_DIR": str(log.parent / "compiled")}
        with open(log, "w") as errors:
            self._process = subprocess.Popen(
                [*command, "--options", *implementation.options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
                env=cache | os.environ | {"TOKENIZERS_PARALLELISM": "false"} | dict(implementation.environment),
            )
        answer = self._answer()
        self.missing: str | None = answer.get("missing")
        self.seconds: list[float] = []  # per repetition, of each turn
        self.results: list[Any] = []
        self.peak: int | None = None  # peak host memory of a turn, in bytes

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        lines = self.log.read_text().strip().splitlines() or ["no output"]
        return {"missing": f"the process exited: {lines[-1][:200]}"}

    def turn(self, repetitions: int, *, counted: bool = True) -> None:
        """Runs one turn; appends its seconds if `counted`."""
        if self.missing is not None:
            return
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the process has exited; _answer() returns its last output
            print(repetitions, file=self._process.stdin, flush=True)
        answer = self._answer()
        self.missing = answer.get("missing")
        if self.missing is None:
            self.results.append(answer["result"])
            self.peak = answer["peak"]
            if counted:
                self.seconds.append(answer["seconds"] / repetitions)

    @property
    def median(self) -> float:
        """Median seconds per repetition."""
        return statistics.median(self.seconds)

    def ratios(self, reference: "Worker") -> list[float]:
        """Returns its speed relative to the reference, turn by turn."""
        return [theirs / ours for theirs, ours in zip(reference.seconds, self.seconds, strict=True)]

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def workers(implementations: Sequence[Implementation], arguments: Sequence[str], logs: Path) -> Iterator[list[Worker]]:
    """Context with the processes of all implementations, started one after another."""
    with contextlib.ExitStack() as stack:
        started = []
        for number, implementation in enumerate(implementations):
            started.append(stack.enter_context(Worker(implementation, arguments, logs / f"{number}.txt")))
        yield started
