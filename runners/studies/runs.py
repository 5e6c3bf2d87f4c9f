"""Runs of cases: each in a process and a run folder of its own; what has been trained is not trained again."""

import contextlib
import dataclasses
import math
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from registry.runs.metrics import VALIDATION
from registry.runs.run import Run
from registry.runs.state import FINISHED, RUNNING
from runners.studies.cases import Case
from tasks.storage.files import Place, make_folder, write_whole

LOG = "log.txt"  # output of the runner, in the folder of a run
LAST_WORDS = 1000  # characters at the end of its output that an error is searched in


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How the runs of cases are trained."""

    exp: str = ""  # the experiment of all cases
    smoke: bool = False
    shared: tuple[str, ...] = ()  # flags of the runner that all cases share, without --set
    sets: tuple[str, ...] = ()  # values of --set that all cases share
    workers: int = 1  # runs at a time; 0 trains nothing


class Runs:
    """The runs of cases in a folder."""

    def __init__(self, folder: Place, options: RunOptions):
        self.folder, self.options = folder, options
        self.failed: dict[Place, str] = {}  # error by run folder
        self._losses: dict[tuple[Place, int], float] = {}  # known ones by run folder and step; they do not change
        self._running: set[subprocess.Popen] = set()
        self._is_stopping = False
        self._lock = threading.Lock()

    def flags_of(self, case: Case, seed: int, end: int) -> list[str]:
        """Returns the flags of the runner that train a run up to a step."""
        sets = [f"--set={each}" for each in self._sets(case, seed)]
        until = [] if end == case.steps else [f"--until={end}"]
        return [*self.options.shared, *sets, *until, f"--workdir={case.folder(self.folder, seed)}"]

    def _sets(self, case: Case, seed: int) -> tuple[str, ...]:
        return (*self.options.sets, *case.overrides_of(seed))

    def train(self, cases: Sequence[tuple[Case, int]]) -> None:
        """Trains all runs of cases that have not reached the step with which the case is given."""
        runs = [(case, seed, end) for case, end in cases for seed in case.seeds]
        missing = [(case, seed, end) for case, seed, end in runs if self.loss_of(case, seed, end) is None]
        if known := len(runs) - len(missing):
            print(f"{known} of {len(runs)} runs have been trained before.", flush=True)
        if not self.options.workers:
            for case, seed, end in missing:
                self.failed[case.folder(self.folder, seed)] = f"It has no validation loss at step {end}."
            return
        with _exit_on_sigterm(), ThreadPoolExecutor(self.options.workers) as pool:
            done = [pool.submit(self._train_one, *run) for run in missing]
            try:
                for number, (future, run) in enumerate(zip(done, missing, strict=True), 1):
                    self._print(f"{number}/{len(missing)}", *run, future.result())
            except BaseException:
                for future in done:
                    future.cancel()
                with self._lock:
                    self._is_stopping = True
                    for process in self._running:
                        process.terminate()  # it saves and exits
                raise

    def _print(self, number: str, case: Case, seed: int, end: int, seconds: float) -> None:
        loss = self.loss_of(case, seed, end)
        found = f"loss {loss:.4f}" if loss is not None else self.failed[case.folder(self.folder, seed)]
        of_seed = f" SEED={seed}" if len(case.seeds) > 1 else ""
        print(f"{number}  {case.text}{of_seed}  step {end}: {found} ({seconds:.0f} s)", flush=True)

    def _train_one(self, case: Case, seed: int, end: int) -> float:
        """Trains a run up to a step, in a process; returns its seconds."""
        workdir, began = case.folder(self.folder, seed), time.perf_counter()
        make_folder(workdir)
        command = [sys.executable, "-m", "runners.main", *self.flags_of(case, seed, end)]
        with tempfile.TemporaryDirectory() as temporary:
            output = Path(temporary, LOG)
            log = workdir / LOG if isinstance(workdir, Path) else output
            before = log.stat().st_size if log.exists() else 0
            code = self._call(command, log)
            words = log.read_bytes()[before:].decode(errors="replace")
            if log == output:
                earlier = (workdir / LOG).read_text() if (workdir / LOG).exists() else ""
                write_whole(workdir / LOG, earlier + words)
        if code == 0 and self.loss_of(case, seed, end) is not None:
            self.failed.pop(workdir, None)
        else:
            lines = words[-LAST_WORDS:].strip().splitlines() or [f"exit code {code}"]
            self.failed[workdir] = next((line for line in reversed(lines) if "vortaro:" in line), lines[-1])
        return time.perf_counter() - began

    def _call(self, command: Sequence[str], log: Path) -> int:
        with self._lock:
            if self._is_stopping:
                return 1
            with log.open("a") as out:
                process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
            self._running.add(process)
        code = process.wait()
        with self._lock:
            self._running.discard(process)
        return code

    def loss_of(self, case: Case, seed: int, end: int) -> float | None:
        """Returns the validation loss of a run at a step; None if it is unknown, not finite, or of other settings."""
        folder = case.folder(self.folder, seed)
        if (folder, end) not in self._losses:
            run = Run(folder)
            if run.problem is not None or not self._is_of(run, case, seed):
                return None
            found = [line["loss"] for line in run.lines if line["split"] == VALIDATION and line["step"] == end]
            if not found or found[-1] is None or not math.isfinite(found[-1]):
                return None
            self._losses[folder, end] = found[-1]
        return self._losses[folder, end]

    def _is_of(self, run: Run, case: Case, seed: int) -> bool:
        """Returns whether a run has the settings of a case; the folder of another one is refused by training."""
        wanted = {name: value for name, _, value in (each.partition("=") for each in self._sets(case, seed))}
        stated = {name: value for name, _, value in (each.partition("=") for each in run.record["overrides"])}
        same_entry = (
            run.record["experiment"] == self.options.exp and run.record.get("smoke", False) == self.options.smoke
        )
        return same_entry and stated == wanted

    def is_unfinished(self, case: Case, seed: int, end: int) -> bool:
        """Returns whether a run has not reached a step, and would continue: it was not started, or was interrupted."""
        if self.loss_of(case, seed, end) is not None:
            return False
        run = Run(case.folder(self.folder, seed))
        if run.problem is not None or not (starts := run.record.get("starts")) or run.state == RUNNING:
            return True
        ended = starts[-1].get("ended")
        return ended is not None and ended["reason"] != FINISHED

    def losses(self, case: Case, end: int) -> list[float | None]:
        """Returns the validation loss of each seed of a case at a step; None for those that are unknown."""
        return [self.loss_of(case, seed, end) for seed in case.seeds]

    def mean_loss(self, case: Case, end: int) -> float:
        """Returns the mean loss of the seeds of a case at a step; infinite if one is unknown."""
        values = self.losses(case, end)
        return math.inf if None in values else sum(value for value in values if value is not None) / len(values)

    def errors(self, case: Case) -> dict[str, str]:
        """Returns the errors of the failed runs of a case, by folder."""
        folders = [case.folder(self.folder, seed) for seed in case.seeds]
        return {str(folder): self.failed[folder] for folder in folders if folder in self.failed}


@contextlib.contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Makes SIGTERM raise SystemExit inside, so that the processes of runs are stopped too."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
