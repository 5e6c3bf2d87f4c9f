"""Trains models of several widths and budgets of FLOPs, fits a scaling law, and predicts larger runs."""

import dataclasses
from typing import TYPE_CHECKING

from layers.errors import UsageError
from runners.modes.study import CaseOptions, shared_options, train_run
from runners.options import option
from runners.request import Request
from runners.widths.flags import WidthOptions, require_counts, require_initial_weights

if TYPE_CHECKING:  # these import jax
    from registry.experiment import Experiment
    from runners.scaling.scale import Ladder


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(CaseOptions, WidthOptions):
    """Flags of --mode=scale."""

    budgets: str | None = option("FLOPs of a run; each width is trained with each", metavar="1e12,1e13", default=None)
    rates: str | None = option(
        "learning rates, a range or a list, of which the best one counts; by default LEARNING_RATE",
        metavar="2^-11..2^-5",
        advice="Set LEARNING_RATE.",
        default=None,
    )
    held_out: tuple[str, ...] = option(
        "a run that is trained and predicted, but not fitted; repeatable", metavar="WIDTH@FLOPS", default=()
    )
    advise: str | None = option("FLOPs of future runs, whose best width is advised", metavar="1e15,1e16", default=None)


def run(request: Request, options: Options) -> int:
    """Trains what is missing and writes scale.json, scale.png and scale.html; returns the exit code."""
    from runners.scaling.scale import run_of, scale
    from runners.studies.runs import Runs

    ladder, shared = _ladder(request.experiment, options), shared_options(request, options)
    if options.run is None:
        return scale(request.experiment, request.workdir, ladder, shared)
    if not 0 <= options.run < ladder.runs:
        raise UsageError(f"--run must be 0 to {ladder.runs - 1} for this ladder (got {options.run}).")
    return train_run(request, Runs(request.workdir, shared), *run_of(request.experiment, ladder, options.run))


def arrays(experiment: "Experiment", options: Options) -> tuple[int, ...]:
    """Returns how many runs the ladder has, for an array of jobs; nothing if flags choose the runs."""
    return () if options.is_one_job else (_ladder(experiment, options).runs,)


def _ladder(experiment: "Experiment", options: Options) -> "Ladder":
    from runners.scaling.scale import Ladder
    from runners.widths.widths import parse_rates, parse_widths, refuse_settings

    require_initial_weights(experiment, "scale")
    if experiment.knobs().get("PHASES"):
        raise UsageError("PHASES cannot be scaled, because budgets choose NUM_STEPS (--mode=scale). Set PHASES=().")
    require_counts(seeds=options.seeds)
    refuse_settings(experiment, {"MODEL_DIM": "--widths", "NUM_STEPS": "--budgets", "train.num_steps": "--budgets"})
    refuse_settings(experiment, dict.fromkeys(("EVAL_EVERY", "DECAY_STEPS"), "the end of a run, which --budgets gives"))
    if options.rates is not None:
        refuse_settings(experiment, {"LEARNING_RATE": "--rates"})
    if options.budgets is None:
        raise UsageError("--mode=scale needs --budgets, the FLOPs of the runs. Give for example --budgets=1e12,1e13.")
    return Ladder(
        widths=parse_widths(options.widths, experiment),
        budgets=_numbers("budgets", options.budgets),
        rates=() if options.rates is None else parse_rates(options.rates),
        seeds=options.seeds or 1,
        held_out=tuple(_pair(text) for text in options.held_out),
        advise=() if options.advise is None else _numbers("advise", options.advise),
    )


def _numbers(flag: str, text: str) -> tuple[float, ...]:
    try:
        numbers = tuple(sorted({float(word) for word in text.split(",")}))
    except ValueError:
        numbers = ()
    if not numbers or not all(0 < number < float("inf") for number in numbers):
        raise UsageError(f"--{flag} must be a list of positive numbers like 1e12,1e13 (got {text}).")
    return numbers


def _pair(text: str) -> tuple[int, float]:
    width, _, budget = text.partition("@")
    try:
        pair = int(width), float(budget)
    except ValueError:
        pair = 0, 0.0
    if not (pair[0] > 0 and 0 < pair[1] < float("inf")):
        raise UsageError(f"--held_out must be WIDTH@FLOPS, like 512@1e14 (got {text}).")
    return pair
