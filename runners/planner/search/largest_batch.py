"""The largest batch that fits: bisection over the rows of each group of devices that shares rows."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from layers.errors import UsageError
from layers.specs import axes_of
from registry.checks import check
from registry.experiment import Experiment, cls_key, knob_types
from registry.tool import render
from runners.planner.machine import Machine
from runners.planner.programs.compilation import Step
from runners.planner.search.cases import Case
from runners.planner.search.plans import Plans
from runners.planner.search.results import open_results
from runners.reports.results import title
from tasks.storage.files import Place

MOST = 2**20  # rows of a group; no larger batch is tried


@dataclasses.dataclass(frozen=True)
class Largest:
    """What a bisection has found."""

    fits: int | None  # the largest number that fits; None: the smallest admissible one does not
    next: int | None  # the next larger admissible one, which does not fit; None: all fit


def bisect(start: int, admissible: Callable[[int], bool], fits: Callable[[int], bool], most: int = MOST) -> Largest:
    """Returns the largest admissible number of 1..most that fits, and the next larger one, which was tried too.

    Between the two no number is admissible. Larger ones than `next` are not tried.

    Args:
      start: the number to try first.
      admissible: whether a number is valid at all; cheap.
      fits: whether an admissible number fits.
      most: the largest number.
    """
    low, high = 0, None  # the largest that fits, and the smallest that does not
    number = _first(range(start, 4 * start + 1), admissible)
    while number is not None and high is None:
        if fits(number):
            low = number
            number = _first(range(min(2 * low, most), min(4 * low, most) + 1), admissible) if low < most else None
        else:
            high = number
    limit = min(4 * max(low, start), most) + 1 if high is None else high
    while True:
        middle = (low + limit) // 2
        between = _first((*range(max(middle, low + 1), limit), *range(middle - 1, low, -1)), admissible)
        if between is None:
            return Largest(low or None, high)
        if fits(between):
            low = between
        else:
            limit = high = between


def _first(numbers: Any, admissible: Callable[[int], bool]) -> int | None:
    return next((number for number in numbers if admissible(number)), None)


def largest_batch(experiment: Experiment, folder: Place, machine: Machine, step: Step = "train") -> int:
    """Prints the largest BATCH_SIZE whose plan fits, and the next larger one, which does not, with their peaks.

    The mesh and the number of micro-batches stay, so the tokens of an update change. Each plan is appended to
    layouts.jsonl at once: the same command in the same folder resumes.

    Returns:
      The exit code: 1 if no batch fits.
    Raises:
      UsageError: no chip is known, or the experiment has no BATCH_SIZE.
    """
    if "BATCH_SIZE" not in knob_types(type(experiment)):
        raise UsageError(f"--largest_batch needs the knob BATCH_SIZE, which {cls_key(type(experiment))} does not have.")
    experiment, devices, results = open_results("--largest_batch", experiment, folder, machine)
    plans, out = Plans(experiment, machine, step, devices, results), render.console()
    mesh = experiment.mesh_shape(len(devices))
    groups = math.prod(mesh[axis] for axis in axes_of(experiment.layout.activations["tokens_bs"][0]))
    rows = groups * getattr(experiment, "GRADIENT_ACCUMULATION", 1)
    case = lambda number: Case({"BATCH_SIZE": number * rows}, {})

    def admissible(number: int) -> bool:
        try:
            check(case(number).of(experiment), mesh)
        except UsageError:
            return False
        return True

    def fits(number: int) -> bool:
        plan, _ = plans.complete(case(number))
        if "memory_bytes_per_device" not in plan:
            raise UsageError(f"The plan with BATCH_SIZE={number * rows} failed: {plan['reason']}.")
        out.print(_line(number, number * rows, plan))
        return plan["fits"]

    out.print(f"{title(_named(experiment))} on mesh {render.mesh_text(mesh)}: {groups} groups of devices")
    found = bisect(max(1, experiment.knobs()["BATCH_SIZE"] // rows), admissible, fits)
    _show(found, rows, {number: plans.complete(case(number))[0] for number in (found.fits, found.next) if number}, out)
    print(f"Written: {results.file}")
    return 0 if found.fits else 1


def _named(experiment: Experiment) -> dict[str, Any]:
    cls = type(experiment)
    return {"experiment": cls_key(cls), "smoke": experiment.smoke, "overrides": experiment.overrides}


def _peak(plan: dict[str, Any]) -> str:
    if "peak" in plan["memory_bytes_per_device"]:
        return f"peak {render.size(plan['memory_bytes_per_device']['peak'])}"
    needed = plan["compiler"].get("needed_bytes")
    return "refused by the compiler" if needed is None else f"the compiler needs {render.size(needed)}"


def _line(number: int, rows: int, plan: dict[str, Any]) -> str:
    return f"{number} rows per group, BATCH_SIZE={rows}: {_peak(plan)}, {'fits' if plan['fits'] else 'does not fit'}"


def _show(found: Largest, rows: int, plans: dict[int, dict[str, Any]], out: Any) -> None:
    if found.fits is not None:
        out.print(f"Largest batch that fits: --set=BATCH_SIZE={found.fits * rows} ({_peak(plans[found.fits])})")
    if found.next is not None:
        larger = "No batch fits. The smallest one is" if found.fits is None else "The next larger one does not fit:"
        capacity = render.size(plans[found.next]["capacity_bytes_per_device"])
        peak = f"{_peak(plans[found.next])}, capacity {capacity}"
        out.print(f"{larger} --set=BATCH_SIZE={found.next * rows} ({peak})")
    else:
        out.print("No batch is valid." if found.fits is None else "No larger one is valid, or was tried.")
