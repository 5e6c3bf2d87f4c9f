"""--search: the fastest plan that fits among mesh shapes, rows per step, remat policies and ZeRO stages."""

import dataclasses
from pathlib import Path
from typing import Any

from layers.errors import UsageError
from registry.experiment import Experiment, written_classes
from registry.tool import render
from registry.tool.scaffold import knob_lines, place_of, write_class
from runners.planner.cost import Plan
from runners.planner.machine import Machine
from runners.planner.programs.compilation import Step
from runners.planner.search.best_first import Outcome, best_first
from runners.planner.search.cases import Case, cases, dimensions
from runners.planner.search.plans import Plans
from runners.planner.search.results import open_results
from runners.planner.summary import ESTIMATE, rate
from tasks.storage.files import Place

COLUMNS = ("fits", "memory", "step", "tokens/s", "MFU", "why not")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """What is searched, and what is done with the best case."""

    over: str | None = None  # dimensions, separated by commas; None: all
    exhaustive: bool = False  # compile all cases
    write: str | None = None  # FILE[:Class] of a new experiment with the best case's knobs


def search(
    experiment: Experiment, folder: Place, machine: Machine, step: Step = "train", how: Search | None = None
) -> int:
    """Prints the plans that were compiled, those that fit first, by step time, and the --set values of the best.

    Bounds and plans are appended to layouts.jsonl at once: the same command in the same folder resumes the search.

    Returns:
      The exit code: 1 if no case fits.
    Raises:
      UsageError: no chip is known, a dimension is unknown, or a file to write exists.
    """
    how = how or Search()
    over = dimensions(how.over, experiment, step)
    place = None if how.write is None else _place(how.write, experiment)
    experiment, devices, results = open_results("--search", experiment, folder, machine)
    plans, out = Plans(experiment, machine, step, devices, results), render.console()
    space = cases(experiment, len(devices), over)

    def seen(case: Case, plan: Plan) -> None:
        out.print("  ".join(cell for cell in _cells(case, plan) if cell))

    outcome = best_first(space, plans, exhaustive=how.exhaustive, seen=seen)
    _show(outcome, over, plans, len(space), out)
    print(f"Written: {results.file}")
    if outcome.best is None:
        return 1
    out.print(f"Fastest plan that fits: {' '.join(f'--set={item}' for item in outcome.best[0].sets)}")
    if place is not None:
        print(f"Written: {_write(*place, experiment, outcome.best[0])}")
    return 0


def _show(outcome: Outcome[Case, Plan], over: list[str], plans: Plans, number: int, out: Any) -> None:
    rows = [_cells(case, plan) for case, plan in outcome.complete]
    if rows:
        numbers = ("memory", "step", "tokens/s", "MFU")
        out.print(render.table((*over, *COLUMNS), rows, right=numbers, flexible={"why not": 30}))
    if any(plan.get("roofline_is_estimate") for _, plan in outcome.complete):
        out.print(ESTIMATE)
    counts = {
        "planned": len(rows),
        "slower by a lower bound": len(outcome.pruned),
        "invalid or too large before compilation": len(outcome.excluded),
    }
    text = ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)
    shared = f"; {plans.shared} of them have the program of another one" if plans.shared else ""
    out.print(f"{number:,} cases: {text}; {plans.compiled} programs compiled now{shared}.")
    if outcome.best is None:
        out.print(_closest(outcome))


def _closest(outcome: Outcome[Case, Plan]) -> str:
    """Returns a sentence on the case that lacks the least memory, if no case fits."""
    peaks = [
        (plan["memory_bytes_per_device"]["peak"], position)
        for position, (_, plan) in enumerate(outcome.complete)
        if "peak" in plan.get("memory_bytes_per_device", {})
    ]
    if peaks:
        peak, position = min(peaks)
        case, plan = outcome.complete[position]
        amounts = " of ".join(render.apart(peak, plan["capacity_bytes_per_device"], render.size))
        reason = f"it needs {amounts}"
    elif outcome.complete:
        case, reason = outcome.complete[0][0], outcome.complete[0][1].get("reason", "")
    else:
        case, reason = outcome.excluded[0]
    return f"No case fits. The closest is {' '.join(f'--set={item}' for item in case.sets)}: {reason}."


def _cells(case: Case, plan: Plan) -> tuple[str, ...]:
    peak = plan.get("memory_bytes_per_device", {}).get("peak")
    memory = render.size(peak) if peak is not None else ""
    if "roofline_step_seconds" not in plan:
        return *case.texts.values(), "no", memory, "", "", "", plan.get("reason", "")
    about = "~" if plan["roofline_is_estimate"] else ""
    speed = f"{about}{plan['roofline_step_seconds']:.3g} s", rate(plan["roofline_tokens_per_second"])
    fits = "yes" if plan["fits"] else "no"
    return *case.texts.values(), fits, memory, *speed, render.percent(plan["roofline_mfu"]), ""


def _place(text: str, experiment: Experiment) -> tuple[Path, str]:
    """Returns the folder and the name `module.Class` of the class that --write names.

    Raises:
      UsageError: the file exists or its name is not that of a module, or the experiment is a small form.
    """
    base = written_classes(type(experiment))[0]
    if experiment.smoke:
        raise UsageError("--write cannot be combined with --smoke, whose knobs are those of a small form. Remove one.")
    file, _, name = text.partition(":")
    if not file.endswith(".py"):
        raise UsageError(f"--write must be FILE.py or FILE.py:Class (got {text}).")
    folder, dotted = Path(file).parent, f"{Path(file).stem}.{name or f'{base.__name__}Planned'}"
    if place_of(dotted, base.__name__, folder)[0].exists():
        raise UsageError(f"--write={text} would change an existing file. Choose another name.")
    return folder, dotted


def _write(folder: Path, name: str, experiment: Experiment, case: Case) -> Path:
    """Writes the class: the case's knobs, and those of --set."""
    base, cls = written_classes(type(experiment))[0], type(case.of(experiment))
    knobs = {knob: value for knob, value in cls.knobs().items() if value != getattr(base, knob)}
    body = f'"""{base.__name__} with the knobs of its fastest plan."""\n\n{knob_lines(knobs) or f"SEED = {base.SEED}"}'
    return write_class(base, name, body, folder)
