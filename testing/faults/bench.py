"""Disturbed runs, and checks of their final state against a run without faults (see `benchmarks.faults`)."""

import dataclasses
import os
import random
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from testing.faults.runs import Run, write_data
from testing.launches import SETTINGS, STEPS, Launch, command, differences, environment_of

SAME, STOPPED, OTHER, SKIPPED = "same bits", "clear stop", "other", "skipped"
Shape = tuple[int, int]  # processes, virtual devices of each
RESUME = "Run the same command again to resume"  # in every error message of a run that can resume


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Outcome of one fault of a kind of run; `result` is SAME, STOPPED, OTHER or SKIPPED."""

    row: str
    result: str
    detail: str
    run: str = ""


@dataclasses.dataclass(frozen=True)
class FaultRecord:
    """One fault of a launch: its description, and violated guarantees (empty if none)."""

    fault: str
    violations: str = ""


Fault = Callable[[Launch], Sequence[FaultRecord]]  # empty: the run had already ended


class Bench:
    """One kind of run: folders, reference runs without faults, and the random number generator.

    Args:
      root: an existing folder for all files.
      run: the kind of run.
      seed: of the moments, processes and damaged bits.
      small: whether to run few faults of each kind.
    """

    def __init__(self, root: Path, run: Run, seed: int, *, small: bool):
        self.root, self.run, self.rng, self.small = root, run, random.Random(seed), small
        self.alone, self.pair = (1, run.devices), (2, run.devices)
        self.longest_wait = 0.0  # seconds from a kill until the last surviving process exited
        self._data = root / "data"
        # Programs of several devices that are read from a cache may wait for each other forever (compilation_cache.py).
        cache = Path(os.environ.get("JAX_COMPILATION_CACHE_DIR", root / "cache"))
        self._cache = cache if run.devices == 1 else None
        self._references: dict[Shape, Path] = {}
        self._folders = 0
        write_data(self._data)

    def folder(self) -> Path:
        """Returns the path of a new run folder."""
        self._folders += 1
        return self.root / f"run{self._folders}"

    def flags(self, workdir: Path | str) -> list[str]:
        """Returns the runner's flags of the training command."""
        settings = (*SETTINGS, *self.run.overrides(self._data))
        return command(workdir, settings, experiment=self.run.experiment)[3:]

    def environment(self) -> dict[str, str]:
        """Returns the environment variables of a process of the run."""
        return environment_of(self.run.devices, self._cache)

    def launch(self, workdir: Path | str, shape: Shape, *, settings: Sequence[str] = (), **options) -> Launch:
        """Starts the training command with the processes and devices of `shape`."""
        settings = (*self.run.overrides(self._data), *settings)
        options |= {"experiment": self.run.experiment, "settings": settings}
        return Launch(workdir, *shape, self._cache, self.root / "logs", **options)

    def reference(self, shape: Shape) -> Path:
        """Returns the folder of a run without faults."""
        if shape not in self._references:
            workdir = self.root / f"reference{shape[0]}"
            launch = self.launch(workdir, shape)
            if any(launch.codes()):
                raise RuntimeError(f"A run without faults failed: {[launch.err(i) for i in range(shape[0])]}")
            self._references[shape] = workdir
        return self._references[shape]

    def final_differences(
        self, workdir: Path | str, shape: Shape, *, local: Callable[[], Path] | None = None, **options
    ) -> str:
        """Resumes a run until its end; returns its differences from a run without faults, or an empty string.

        Args:
          workdir: the run folder.
          shape: processes and devices.
          local: returns a local copy of a run folder on a store.
          **options: of the launch.
        """
        launch = self.launch(workdir, shape, **options)
        codes = launch.codes()
        if any(codes):
            return f"the restart ended with {codes}: {[launch.err(i)[-1500:] for i in range(shape[0])]}"
        finished = Path(workdir) if local is None else local()
        return ", ".join(f"{item} differs" for item in differences(self.reference(shape), finished))

    def run_with_faults(
        self,
        row: str,
        shape: Shape,
        faults: Iterable[Fault],
        *,
        workdir: Path | str | None = None,
        local: Callable[[], Path] | None = None,
        **options,
    ) -> Iterator[Outcome]:
        """Starts one run again for each item of `faults`; if its final state differs, every fault counts as a failure.

        Args:
          row: the row of the table.
          shape: processes and devices.
          faults: what disturbs each launch, once or several times.
          workdir: the run folder; None makes a new local one.
          local: returns a local copy of a run folder on a store.
          **options: of each launch.
        """
        self.reference(shape)
        folder, records = workdir or self.folder(), list[FaultRecord]()
        for fault in faults:
            launch = self.launch(folder, shape, **options)
            try:
                records += fault(launch)
            finally:
                launch.send(signal.SIGKILL)
                launch.codes()
        difference = self.final_differences(folder, shape, local=local, **options)
        for record in records:
            violations = "; ".join(filter(None, (record.violations, difference)))
            yield self.outcome(row, OTHER if violations else SAME, ": ".join(filter(None, (record.fault, violations))))

    def outcome(self, row: str, result: str, detail: str) -> Outcome:
        """Returns an outcome of this kind of run."""
        return Outcome(row, result, detail, self.run.name)


def unexpected_exit(launch: Launch, index: int, message: str = RESUME, codes: Sequence[int] = (1,)) -> str:
    """Returns how a process exited; an empty string if with one of `codes` and one error message with `message`."""
    code, sentence = launch.processes[index].poll(), launch.sentence(index)
    if code in codes and sentence and message in sentence:
        return ""
    return f"process {index} exited with {code} and stderr: {launch.err(index)[-1500:] or '(empty)'}"


def spread(number: int, count: int) -> int:
    """Returns the step of fault `number` of `count`, spread over the run."""
    return int((STEPS - 25) * (number + 0.5) / count)
