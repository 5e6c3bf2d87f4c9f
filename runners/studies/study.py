"""--mode=study: trains the cases of a study as runs of their own, and compares them."""

import itertools
import json
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any, TypedDict

from layers.errors import UsageError, first_line
from registry.experiment import Experiment, cls_key
from registry.study import Study
from registry.values import show
from runners.studies import page
from runners.studies.cases import Case, checked_cases, importance, seeds_of, study_of
from runners.studies.runs import RunOptions, Runs
from tasks.storage.files import Place, make_folder, write_whole
from tasks.storage.json_values import parsed, require_type

STUDY = "study.json"


def study(experiment: Experiment, folder: Place, options: RunOptions) -> int:
    """Trains what is missing of a study, prints the cases by loss, writes study.json and study.html.

    Returns:
      0; 1 if a run has failed.

    Raises:
      UsageError: the experiment has no study, or a case is invalid.
    """
    plan = study_of(experiment)
    cases = _cases(experiment, plan)
    make_folder(folder)
    runs = Runs(folder, options)
    reached: dict[int, list[tuple[int, float]]] = {case.number: [] for case in cases}
    for alive in _rungs(plan, cases, runs):
        runs.train([(case, end) for case, end in alive])
        for case, end in alive:
            reached[case.number].append((end, runs.mean_loss(case, end)))
    summary = _summary(experiment, plan, cases, runs, reached)
    write_whole(folder / STUDY, json.dumps(summary, indent=1) + "\n")
    page.write(folder, summary)
    page.show(summary)
    print(f"Written: {folder / STUDY} and {folder / page.PAGE}", flush=True)
    return 1 if runs.failed else 0


def run_of(experiment: Experiment, runs: Runs, *, number: int, rung: int) -> tuple[Case, int, int]:
    """Returns a run of a rung, as a case, a value of SEED and the step to train to, for a task of an array of jobs.

    Runs are numbered by case, the best of the rung before first, and within a case by seed.

    Raises:
      UsageError: the experiment has no study, a case is invalid, or no run has the number.
    """
    plan = study_of(experiment)
    counts = plan.cases_of_rungs()
    if not 0 <= rung < len(counts):
        raise UsageError(f"--rung must be 0 to {len(counts) - 1} for this study (got {rung}).")
    total = counts[rung] * plan.seeds
    if not 0 <= number < total:
        raise UsageError(f"--run must be 0 to {total - 1} for rung {rung} of this study (got {number}).")
    case, end = _array(experiment, plan, runs, rung)[number // plan.seeds]
    return case, case.seeds[number % plan.seeds], end


class _Rung(TypedDict):
    study: str
    cases: list[int]


def _recorded_order(file: Place, plan: Study, numbers: Collection[int]) -> list[int] | None:
    """Returns the order of cases in a file of a rung; None if it is that of another study.

    Raises:
      UsageError: the file is damaged.
    """
    try:
        known = parsed(file.read_text())
        require_type(known, _Rung, "it")
        if known["study"] != show(plan):
            return None
        if not set(known["cases"]) <= set(numbers):
            raise ValueError("it has cases that the study lacks")
    except (OSError, ValueError) as error:
        raise UsageError(f"'{file}' cannot be read: {first_line(error)}. Remove it.") from error
    return known["cases"]


def _array(experiment: Experiment, plan: Study, runs: Runs, rung: int) -> list[tuple[Case, int]]:
    """Returns the cases of a rung in an order that all tasks of its array share: the first task writes it."""
    cases = _cases(experiment, plan)
    ends = {case.number: plan.ends(case.steps) for case in cases}
    if not rung:
        return [(case, ends[case.number][0]) for case in cases]
    by_number = {case.number: case for case in cases}
    file, order = runs.folder / f"rung_{rung}.json", None
    if file.exists():
        order = _recorded_order(file, plan, by_number.keys())
    if order is None:
        rungs = _rungs(plan, cases, runs)
        before = next(itertools.islice(rungs, rung - 1, None))
        waiting = sum(runs.is_unfinished(case, seed, end) for case, end in before for seed in case.seeds)
        if waiting:
            raise UsageError(
                f"{waiting} runs of rung {rung - 1} are not finished, so the cases of rung {rung} are unknown. Train "
                f"them first: the command of rung {rung - 1} continues them."
            )
        order = [case.number for case, _ in next(rungs)]
        write_whole(file, json.dumps({"study": show(plan), "cases": order}) + "\n")
    return [(by_number[number], ends[number][rung]) for number in order]


def _cases(experiment: Experiment, plan: Study) -> list[Case]:
    settings = {f"{number:03}": each for number, each in enumerate(plan.settings())}
    return checked_cases(experiment, settings, seeds_of(experiment, plan.seeds))


def _rungs(plan: Study, cases: Sequence[Case], runs: Runs) -> Iterator[list[tuple[Case, int]]]:
    """Yields the cases of each rung with the step that they are trained to: the best cases of the rung before."""
    alive = list(cases)
    for rung, count in enumerate(plan.cases_of_rungs()):
        ends = {case.number: plan.ends(case.steps) for case in alive}
        if rung:
            alive = sorted(alive, key=lambda case: runs.mean_loss(case, ends[case.number][rung - 1]))[:count]
        yield [(case, ends[case.number][rung]) for case in alive]


def _summary(
    experiment: Experiment,
    plan: Study,
    cases: Sequence[Case],
    runs: Runs,
    reached: dict[int, list[tuple[int, float]]],
) -> dict[str, Any]:
    rows = [
        {
            "case": case.number,
            "settings": {name: show(value) for name, value in case.settings.items()},
            "losses": {str(step): loss if math.isfinite(loss) else None for step, loss in reached[case.number]},
            "runs": [str(case.folder(runs.folder, seed)) for seed in case.seeds],
            "errors": list(runs.errors(case).values()),
        }
        for case in cases
    ]
    order = sorted(cases, key=lambda case: (-len(reached[case.number]), reached[case.number][-1][1]))
    first = [(case.settings, reached[case.number][0][1]) for case in cases]
    finite = [(settings, loss) for settings, loss in first if math.isfinite(loss)]
    return {
        "experiment": cls_key(type(experiment)),
        "smoke": experiment.smoke,
        "overrides": [each for each in experiment.overrides if not each.startswith("STUDY=")],
        "study": show(plan),
        "how": plan.how,
        "seeds": plan.seeds,
        "cases": rows,
        "order": [case.number for case in order],
        "updates": plan.seeds
        * sum(max((step for step, loss in reached[case.number] if loss < math.inf), default=0) for case in cases),
        "all_updates": sum(case.steps for case in cases) * plan.seeds,
        "importance": importance(*zip(*finite, strict=True)) if len(finite) > 1 else {},
    }
