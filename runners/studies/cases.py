"""The cases of a study, resolved and checked before the first one is trained."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from layers.errors import UsageError, VortaroError
from registry.checks import check
from registry.experiment import Experiment, cls_key, knob_types
from registry.overrides import override
from registry.study import Study
from registry.tool import render
from registry.values import show

FOLDER = "cases"  # of the run folders of a study


@dataclasses.dataclass(frozen=True)
class Case:
    """A case of a study; its runs differ in SEED."""

    number: int
    settings: Mapping[str, Any]  # by knob or path
    seeds: tuple[int, ...]  # values of SEED

    @property
    def overrides(self) -> tuple[str, ...]:
        """The settings as values of --set."""
        return tuple(
            f"{name}={value if isinstance(value, str) else show(value)}" for name, value in self.settings.items()
        )

    @property
    def text(self) -> str:
        """The settings for messages and tables."""
        return " ".join(self.overrides)

    def folder(self, study: Path, seed: int) -> Path:
        """Returns the run folder of a seed in the folder of the study."""
        several = f"-seed{seed}" if len(self.seeds) > 1 else ""
        return study / FOLDER / f"{self.number:03}{several}"


def study_of(experiment: Experiment) -> Study:
    """Returns the study of an entry; raises a UsageError if it has none."""
    study: Study | None = experiment.knobs()["STUDY"] if "STUDY" in knob_types(type(experiment)) else None
    if study is None:
        example = 'STUDY=Study(values={"LEARNING_RATE": (0.001, 0.003)})'
        raise UsageError(f"--mode=study needs the knob STUDY of {cls_key(type(experiment))}. Set it, as in {example}.")
    return study


def cases_of(experiment: Experiment, study: Study) -> list[Case]:
    """Returns all cases of a study after their check.

    Raises:
      UsageError: a case is invalid; all of those are printed in one table before.
    """
    seeds = tuple(experiment.SEED + number for number in range(study.seeds))
    cases = [Case(number, settings, seeds) for number, settings in enumerate(study.settings())]
    problems = [(case, problem) for case in cases if (problem := _problem(experiment, case))]
    if problems:
        rows = [(str(case.number), case.text, problem) for case, problem in problems]
        flexible = {"settings": 24, "problem": None}
        render.console().print(render.table(("case", "settings", "problem"), rows, right=("case",), flexible=flexible))
        raise UsageError(
            f"{len(problems)} of {len(cases)} cases of the study are invalid (the table above). Change STUDY."
        )
    return cases


def _problem(experiment: Experiment, case: Case) -> str:
    """Returns why a case cannot be trained; empty if it can."""
    try:
        check(override(type(experiment), case.overrides)())
    except VortaroError as error:
        return str(error)
    return ""


def importance(settings: Sequence[Mapping[str, Any]], losses: Sequence[float]) -> dict[str, float]:
    """Returns the share of the variance of the losses that each setting alone explains (eta squared).

    It is the variance of the mean losses of its values, weighted by their numbers, over the variance of all losses;
    numbers with a value for each case count in thirds of their order. Shares of dependent settings may overlap.

    Args:
      settings: those of each case.
      losses: of each case, finite.
    """
    if len(losses) < 2:
        return {}
    mean = sum(losses) / len(losses)
    total = sum((loss - mean) ** 2 for loss in losses)
    shares = {}
    for name in settings[0]:
        values = [each[name] for each in settings]
        groups: dict[Any, list[float]] = {}
        for key, loss in zip(_keys(values), losses, strict=True):
            groups.setdefault(key, []).append(loss)
        between = sum(len(group) * (sum(group) / len(group) - mean) ** 2 for group in groups.values())
        shares[name] = between / total if total else 0.0
    return shares


def _keys(values: Sequence[Any]) -> list[Any]:
    distinct = {str(value) for value in values}
    if len(distinct) < len(values) or not all(isinstance(value, int | float) for value in values):
        return [str(value) for value in values]
    ranks = sorted(range(len(values)), key=lambda index: values[index])
    keys = [0] * len(values)
    for rank, index in enumerate(ranks):
        keys[index] = 3 * rank // len(values)
    return keys
