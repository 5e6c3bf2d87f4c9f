"""--mode=scale: trains a ladder of widths and budgets, fits a scaling law, predicts larger runs."""

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from registry.experiment import Experiment, cls_key
from runners.scaling import page, text
from runners.scaling.advice import advise
from runners.scaling.ladder import Rung, rungs_of, size_of
from runners.scaling.law import Law, Points, bootstrap, exponent, fit, interval, parabola
from runners.scaling.plot import draw
from runners.studies.cases import Case
from runners.studies.runs import RunOptions, Runs
from tasks.storage.files import Place, make_folder, write_whole

RESULT = "scale.json"

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ladder:
    """Options of --mode=scale."""

    widths: tuple[int, ...]
    budgets: tuple[float, ...]  # FLOPs of a run
    rates: tuple[float, ...] = ()  # values of LEARNING_RATE, the best of which counts; empty: that of the experiment
    seeds: int = 1
    held_out: tuple[tuple[int, float], ...] = ()  # width and budget of runs to predict
    advise: tuple[float, ...] = ()  # budgets of future runs

    def rungs(self, experiment: Experiment) -> list[Rung]:
        """Returns the rungs, those of the first budget first, those to predict last."""
        sizes = {width: size_of(experiment, width) for width in (*self.widths, *(width for width, _ in self.held_out))}
        fitted = [(sizes[width], budget, False) for budget in self.budgets for width in self.widths]
        predicted = [(sizes[width], budget, True) for width, budget in self.held_out]
        return rungs_of(experiment, [*fitted, *predicted], self.rates, self.seeds)

    @property
    def runs(self) -> int:
        """The number of runs."""
        return (len(self.widths) * len(self.budgets) + len(self.held_out)) * max(1, len(self.rates)) * self.seeds


def scale(experiment: Experiment, folder: Place, ladder: Ladder, options: RunOptions) -> int:
    """Trains what is missing of a ladder, prints the law, writes scale.json, scale.png and scale.html.

    Returns:
      0; 1 if a run has failed, or if the runs do not determine a law.

    Raises:
      UsageError: a width or a case is invalid, or a budget is too small.
    """
    rungs = ladder.rungs(experiment)
    make_folder(folder)
    runs = Runs(folder, options)
    runs.train([(case, case.steps) for rung in rungs for case in rung.cases])
    rows = [_row(rung, runs) for rung in rungs]
    points = _points(rows)
    law = fit(points) if points.suffice else None
    laws = [] if law is None else bootstrap(points, law)
    if law is not None:
        _predict(rows, law, laws)
    summary = {
        "experiment": cls_key(type(experiment)),
        "smoke": experiment.smoke,
        "overrides": list(experiment.overrides),
        **dataclasses.asdict(ladder),
        "rows": rows,
        "law": None if law is None else _described(law, laws),
        "parabolas": (parabolas := _parabolas(rows)),
        "size_exponent": _exponent(parabolas),
        "advice": [] if law is None else advise(experiment, law, laws, ladder.widths, ladder.advise),
        "errors": {name: error for rung in rungs for case in rung.cases for name, error in runs.errors(case).items()},
    }
    write_whole(folder / RESULT, json.dumps(summary, indent=1) + "\n")
    draw(folder / "scale.png", summary)
    page.write(folder, summary)
    text.show(summary)
    print(f"Written: {folder / RESULT}, {folder / 'scale.png'} and {folder / page.PAGE}", flush=True)
    return 1 if runs.failed or law is None or not law.is_determined else 0


def run_of(experiment: Experiment, ladder: Ladder, number: int) -> tuple[Case, int, int]:
    """Returns a run of a ladder, as a case, a value of SEED and its updates; `number` is below `ladder.runs`."""
    cases = [case for rung in ladder.rungs(experiment) for case in rung.cases]
    case = cases[number // ladder.seeds]
    return case, case.seeds[number % ladder.seeds], case.steps


def _row(rung: Rung, runs: Runs) -> Row:
    """Returns the result of a rung: that of its best learning rate."""
    best = min(rung.cases, key=lambda case: runs.mean_loss(case, case.steps))
    losses, mean = runs.losses(best, rung.steps), runs.mean_loss(best, rung.steps)
    if any(runs.is_unfinished(case, seed, rung.steps) for case in rung.cases for seed in case.seeds):
        losses, mean = [None] * len(losses), math.inf  # a rate that is missing may be the best one
    rates = [case.settings["LEARNING_RATE"] for case in rung.cases if "LEARNING_RATE" in case.settings]
    rate = best.settings.get("LEARNING_RATE") if math.isfinite(mean) else None
    return {
        "width": rung.size.width,
        "parameters": rung.size.parameters,
        "flops_per_token": rung.size.flops_per_token,
        "budget": rung.budget,
        "steps": rung.steps,
        "tokens": rung.tokens,
        "flops": rung.size.flops_per_token * rung.tokens,
        "held_out": rung.held_out,
        "rate": rate,
        "at_edge": rate is not None and len(rates) > 1 and rate in (min(rates), max(rates)),
        "losses": losses,
        "loss": mean if math.isfinite(mean) else None,
        "runs": [str(case.folder(runs.folder, seed)) for case in rung.cases for seed in case.seeds],
    }


def _points(rows: Sequence[Row]) -> Points:
    """Returns the runs to fit: each seed of a rung is one."""
    found = [
        (row["parameters"], row["tokens"], loss)
        for row in rows
        for loss in row["losses"]
        if not row["held_out"] and loss is not None
    ]
    return Points(*np.array(found, float).reshape(-1, 3).T)


def _predict(rows: Sequence[Row], law: Law, laws: Sequence[Law]) -> None:
    """Adds the losses of the law to rows: `predicted`, its `interval`, and its `error` as a share of the loss."""
    for row in rows:
        place = (row["parameters"], row["tokens"])
        row["predicted"] = law.loss(*place)
        row["interval"] = interval([each.loss(*place) for each in laws])
        row["error"] = None if row["loss"] is None else row["predicted"] / row["loss"] - 1


def _described(law: Law, laws: Sequence[Law]) -> dict[str, Any]:
    """Returns the numbers of a law, each with the interval of its bootstrap."""
    names = ("E", "A", "B", "alpha", "beta", "size_exponent")
    of = lambda name: {"value": getattr(law, name), "interval": interval([getattr(each, name) for each in laws])}
    return {"is_determined": law.is_determined, "resamples": len(laws), **{name: of(name) for name in names}}


def _parabolas(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Returns the parabola of each budget with at least three sizes."""
    found = []
    for budget in sorted({row["budget"] for row in rows if not row["held_out"]}):
        here = [row for row in rows if row["budget"] == budget and not row["held_out"] and row["loss"] is not None]
        fitted = parabola([row["parameters"] for row in here], [row["loss"] for row in here])
        if fitted is not None:
            found.append({"budget": budget, **dataclasses.asdict(fitted)})
    return found


def _exponent(parabolas: Sequence[dict[str, Any]]) -> float | None:
    lowest = [(each["budget"], each["parameters"]) for each in parabolas if each["parameters"] is not None]
    return exponent(*zip(*lowest, strict=True)) if lowest else None
