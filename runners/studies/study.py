"""--mode=study: trains the cases of a study as runs of their own, and compares them."""

import dataclasses
import json
import math
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from layers.errors import UsageError
from registry.experiment import Experiment, cls_key
from registry.runs.metrics import VALIDATION
from registry.runs.run import Run
from registry.study import Study
from registry.values import show
from runners.studies import page
from runners.studies.cases import Case, cases_of, importance, study_of
from tasks.storage.files import Place, make_folder, write_whole

STUDY = "study.json"
LOG = "log.txt"  # output of the runner, in the folder of a run
LAST_WORDS = 1000  # characters at the end of its output that an error is searched in


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """Options of --mode=study."""

    command: tuple[str, ...]  # flags of the runner that all cases share
    workers: int = 1  # runs at a time
    case: int | None = None  # trains this case only; None: all


def study(experiment: Experiment, folder: Place, options: StudyOptions) -> int:
    """Trains what is missing of a study, prints the cases by loss, writes study.json and study.html.

    Returns:
      0; 1 if a case has failed.

    Raises:
      UsageError: the experiment has no study, a case is invalid, or no case has the number.
    """
    plan = study_of(experiment)
    if not isinstance(folder, Path):
        raise UsageError(f"--mode=study needs a folder of this machine or a shared disk (got --workdir={folder}).")
    cases = cases_of(experiment, plan)
    if options.case is not None:
        if plan.how == "halving":
            raise UsageError(
                f"--case does not work with how='halving' (got {options.case}), whose cases depend on each other. "
                f"Remove it."
            )
        if not 0 <= options.case < len(cases):
            raise UsageError(f"--case must be 0 to {len(cases) - 1} (got {options.case}).")
        cases = [cases[options.case]]
    make_folder(folder)
    return _Study(experiment, plan, cases, folder, options).run()


class _Study:
    """A study in a folder, which keeps what has been trained before."""

    def __init__(self, experiment: Experiment, plan: Study, cases: Sequence[Case], folder: Path, options: StudyOptions):
        self.experiment, self.plan, self.cases = experiment, plan, list(cases)
        self.folder, self.options = folder, options
        self.steps: int = experiment.knobs()["NUM_STEPS"]
        self.failed: dict[str, str] = {}  # error by run folder
        self.running: set[subprocess.Popen] = set()
        self.lock = threading.Lock()

    def run(self) -> int:
        alive = self.cases
        losses: dict[int, list[tuple[int, float]]] = {case.number: [] for case in self.cases}
        for rung, end in enumerate(ends := self.plan.ends(self.steps)):
            self._train(alive, end)
            for case in alive:
                losses[case.number].append((end, self._loss(case, end)))
            alive = sorted(alive, key=lambda case: losses[case.number][-1][1])
            if rung + 1 < len(ends):
                alive = alive[: self.plan.kept(len(alive))]
        summary = self._summary(losses)
        if self.options.case is None:
            write_whole(self.folder / STUDY, json.dumps(summary, indent=1) + "\n")
            page.write(self.folder, summary)
        page.show(summary)
        if self.options.case is None:
            print(f"Written: {self.folder / STUDY} and {self.folder / page.PAGE}", flush=True)
        return 1 if self.failed else 0

    def _train(self, cases: Sequence[Case], end: int) -> None:
        """Trains all runs of cases up to a step that have not reached it."""
        runs = [(case, seed) for case in cases for seed in case.seeds if self._value(case, seed, end) is None]
        known = len(cases) * self.plan.seeds - len(runs)
        if known:
            print(f"{known} runs have been trained to step {end} before.", flush=True)
        with ThreadPoolExecutor(self.options.workers) as pool:
            try:
                done = [pool.submit(self._train_one, case, seed, end) for case, seed in runs]
                for number, (future, (case, seed)) in enumerate(zip(done, runs, strict=True), 1):
                    seconds = future.result()
                    loss = self._value(case, seed, end)
                    found = self.failed.get(str(case.folder(self.folder, seed))) or f"loss {loss:.4f}"
                    of_seed = f" SEED={seed}" if self.plan.seeds > 1 else ""
                    line = f"{number}/{len(runs)}  {case.text}{of_seed}  step {end}: {found} ({seconds:.0f} s)"
                    print(line, flush=True)
            except BaseException:
                for future in done:
                    future.cancel()
                with self.lock:
                    for process in self.running:
                        process.terminate()  # it saves and exits
                raise

    def _train_one(self, case: Case, seed: int, end: int) -> float:
        """Trains a run up to a step, in a process; returns its seconds."""
        workdir, began = case.folder(self.folder, seed), time.perf_counter()
        make_folder(workdir)
        sets = [f"--set={each}" for each in ("STUDY=none", *case.overrides, f"SEED={seed}")]
        until = [] if end == self.steps else [f"--until={end}"]
        command = [sys.executable, "-m", "runners.main", *self.options.command, *sets, *until, f"--workdir={workdir}"]
        log = workdir / LOG
        with log.open("a") as out:
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
            with self.lock:
                self.running.add(process)
            code = process.wait()
        with self.lock:
            self.running.discard(process)
        if code == 0 and self._value(case, seed, end) is not None:
            self.failed.pop(str(workdir), None)
        else:
            words = log.read_text()[-LAST_WORDS:].strip().splitlines() or [""]
            self.failed[str(workdir)] = next((line for line in reversed(words) if "vortaro:" in line), words[-1])
        return time.perf_counter() - began

    def _value(self, case: Case, seed: int, end: int) -> float | None:
        """Returns the validation loss of a run at a step; None if it is unknown."""
        lines = Run(case.folder(self.folder, seed)).lines
        found = [line["loss"] for line in lines if line["split"] == VALIDATION and line["step"] == end]
        return found[-1] if found and found[-1] is not None and math.isfinite(found[-1]) else None

    def _loss(self, case: Case, end: int) -> float:
        """Returns the mean loss of the seeds of a case at a step; infinite if one is unknown."""
        values = [self._value(case, seed, end) for seed in case.seeds]
        return math.inf if None in values else sum(value for value in values if value is not None) / len(values)

    def _summary(self, losses: dict[int, list[tuple[int, float]]]) -> dict[str, Any]:
        rows = [
            {
                "case": case.number,
                "settings": {name: show(value) for name, value in case.settings.items()},
                "losses": {str(step): loss if math.isfinite(loss) else None for step, loss in losses[case.number]},
                "runs": self._folders(case),
                "errors": [self.failed[run] for run in self._folders(case) if run in self.failed],
            }
            for case in self.cases
        ]
        last = lambda case: losses[case.number][-1]
        order = sorted(self.cases, key=lambda case: (-last(case)[0], last(case)[1]))
        first = [(case.settings, losses[case.number][0][1]) for case in self.cases]
        finite = [(settings, loss) for settings, loss in first if math.isfinite(loss)]
        updates = sum(last(case)[0] for case in self.cases) * self.plan.seeds
        return {
            "experiment": cls_key(type(self.experiment)),
            "smoke": self.experiment.smoke,
            "overrides": [each for each in self.experiment.overrides if not each.startswith("STUDY=")],
            "study": show(self.plan),
            "how": self.plan.how,
            "seeds": self.plan.seeds,
            "cases": rows,
            "order": [case.number for case in order],
            "updates": updates,
            "all_updates": len(self.cases) * self.steps * self.plan.seeds,
            "importance": importance(*zip(*finite, strict=True)) if len(finite) > 1 else {},
            "importance_step": losses[self.cases[0].number][0][0],
        }

    def _folders(self, case: Case) -> list[str]:
        return [str(case.folder(self.folder, seed)) for seed in case.seeds]
