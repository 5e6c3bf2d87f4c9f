"""Ladders: models of several widths, each trained with several budgets of FLOPs."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from layers.errors import UsageError, errors_of
from registry.checks import check
from registry.experiment import Experiment, cls_key
from runners.studies.cases import Case, checked_cases, seeds_of
from runners.throughput import count_update_flops
from runners.widths.widths import of_width
from tasks.batch import empty_batch
from tasks.train_step import abstract_state

FEWEST_STEPS = 10
OF_A_LADDER = (
    "EVAL_EVERY",
    "DECAY_STEPS",
)  # knobs that are None: a run is evaluated, and its schedule ends, at its end


@dataclasses.dataclass(frozen=True)
class Size:
    """A model of the ladder."""

    width: int  # MODEL_DIM
    parameters: int  # N: all weights that are trained
    flops_per_token: float  # in the matrix products of an update
    tokens_per_update: int
    settings: Mapping[str, Any]  # MODEL_DIM, and other knobs that differ from the experiment's

    def steps(self, budget: float) -> int:
        """Returns the number of updates that spends a budget of FLOPs, rounded."""
        return round(budget / (self.flops_per_token * self.tokens_per_update))

    def tokens(self, steps: int) -> int:
        """Returns D, the tokens of updates."""
        return steps * self.tokens_per_update

    def flops(self, steps: int) -> float:
        """Returns the FLOPs of updates."""
        return self.tokens(steps) * self.flops_per_token


def size_of(experiment: Experiment, width: int) -> Size:
    """Returns the model of a width.

    Raises:
      UsageError: the experiment has no such width, or is invalid there.
    """
    with errors_of(f"Width {width}"):
        wide = of_width(experiment, width)
        built = check(wide)
    task, source = built.task, built.train.input
    shape = (source.batch_size, source.seq_len)
    variables = abstract_state(task, empty_batch(*shape)).variables
    before, after = experiment.knobs(), wide.knobs()
    return Size(
        width=width,
        parameters=sum(row.size for row in task.weight_table() if row.trained),
        flops_per_token=count_update_flops(task, variables, shape) / math.prod(shape),
        tokens_per_update=math.prod(shape),
        settings={name: value for name, value in after.items() if name == "MODEL_DIM" or value != before[name]},
    )


@dataclasses.dataclass(frozen=True)
class Rung:
    """A width with a budget; one of its learning rates is the best."""

    size: Size
    budget: float  # FLOPs, as they were asked for
    held_out: bool  # not fitted, but predicted
    cases: tuple[Case, ...]  # by learning rate

    @property
    def steps(self) -> int:
        """Updates of each run."""
        return self.size.steps(self.budget)

    @property
    def tokens(self) -> int:
        """D."""
        return self.size.tokens(self.steps)


def rungs_of(
    experiment: Experiment,
    pairs: Sequence[tuple[Size, float, bool]],
    rates: Sequence[float],
    seeds: int,
) -> list[Rung]:
    """Returns the rungs of a ladder with their cases, after the check of all.

    Args:
      experiment: the entry.
      pairs: sizes and budgets, and whether they are held out.
      rates: values of LEARNING_RATE; empty: that of the experiment.
      seeds: runs of each case.

    Raises:
      UsageError: a budget is too small, or cases are invalid.
    """
    knobs = experiment.knobs()
    settings: dict[str, dict[str, Any]] = {}
    names: list[list[str]] = []
    for size, budget, _ in pairs:
        if (steps := size.steps(budget)) < FEWEST_STEPS:
            least = FEWEST_STEPS * size.flops_per_token * size.tokens_per_update
            raise UsageError(
                f"The budget of {budget:.3g} FLOPs is too small for width {size.width} of "
                f"{cls_key(type(experiment))}, which would have {steps} updates. Give at least {least:.3g}."
            )
        shared = {**size.settings, "NUM_STEPS": steps, **{name: None for name in OF_A_LADDER if name in knobs}}
        name = f"width-{size.width}_flops-{budget:.4g}"
        each = {f"{name}_rate-{rate:.4g}": {**shared, "LEARNING_RATE": rate} for rate in rates} or {name: shared}
        if again := settings.keys() & each.keys():
            raise UsageError(f"Two runs of the ladder are the same: {min(again)}. Remove one from the flags.")
        settings |= each
        names.append(list(each))
    cases = {case.name: case for case in checked_cases(experiment, settings, seeds_of(experiment, seeds))}
    return [
        Rung(size, budget, held_out, tuple(cases[name] for name in group))
        for (size, budget, held_out), group in zip(pairs, names, strict=True)
    ]
