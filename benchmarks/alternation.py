"""Contenders side by side: A B A B ..., each in a process of its own, only one working at a time."""

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

ROOT = Path(__file__).parents[1]
SMALL_PAGES = (("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0"),)


@dataclasses.dataclass(frozen=True)
class Contender:
    """Who does the work, as a line of a table names it."""

    name: str
    module: str  # of benchmarks.contenders
    options: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = (("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),)  # large pages


class Worker:
    """A contender's process, ready to work."""

    def __init__(self, contender: Contender, arguments: Sequence[str], log: Path):
        self.contender, self.log = contender, log
        command = [sys.executable, "-m", "benchmarks.worker", arguments[0], contender.module, *arguments[1:]]
        # Those started later load what the first ones compiled, unless the caller has a cache of its own.
        cache = {"JAX_COMPILATION_CACHE_DIR": str(log.parent / "compiled")}
        with open(log, "w") as errors:
            self._process = subprocess.Popen(
                [*command, "--options", *contender.options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
                env=cache | os.environ | {"TOKENIZERS_PARALLELISM": "false"} | dict(contender.environment),
            )
        answer = self._answer()
        self.missing: str | None = answer.get("missing")
        self.seconds: list[float] = []  # of each turn, by repetition
        self.results: list[Any] = []
        self.peak: int | None = None  # bytes of host memory in a turn

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        told = self.log.read_text().strip().splitlines() or ["it said nothing"]
        return {"missing": f"it ended: {told[-1][:200]}"}

    def turn(self, repetitions: int, *, counted: bool = True) -> None:
        """One turn; one that is not counted leaves its result alone."""
        if self.missing is not None:
            return
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: its last words are the answer
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
        """Seconds of one repetition."""
        return statistics.median(self.seconds)

    def ratios(self, reference: "Worker") -> list[float]:
        """How many times the reference's speed it had, turn by turn."""
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
def workers(contenders: Sequence[Contender], arguments: Sequence[str], logs: Path) -> Iterator[list[Worker]]:
    """All contenders, started one after the other."""
    with contextlib.ExitStack() as stack:
        started = []
        for number, contender in enumerate(contenders):
            started.append(stack.enter_context(Worker(contender, arguments, logs / f"{number}.txt")))
        yield started
