"""The cases of a study, resolved and checked before the first one is trained."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from layers.errors import UsageError, VortaroError
from registry.checks import check
from registry.experiment import Experiment, cls_key, knob_types
from registry.overrides import override
from registry.study import Study
from registry.tool import render
from registry.values import show
from tasks.storage.files import Place

FOLDER = "cases"  # of the run folders of a study


@dataclasses.dataclass(frozen=True)
class Case:
    """A case of a study or a ladder; its runs differ in SEED."""

    number: int
    settings: Mapping[str, Any]  # by knob or path
    seeds: tuple[int, ...]  # values of SEED
    steps: int  # updates of a complete run
    name: str  # of its folder

    @property
    def text(self) -> str:
        """The settings for messages and tables, as values of --set."""
        return " ".join(_overrides(self.settings))

    def overrides_of(self, seed: int) -> tuple[str, ...]:
        """Returns the values of --set of a run."""
        return ("STUDY=none", *_overrides(self.settings), f"SEED={seed}")

    def folder(self, study: Place, seed: int) -> Place:
        """Returns the run folder of a seed in the folder of the study."""
        several = f"-seed{seed}" if len(self.seeds) > 1 else ""
        return study / FOLDER / f"{self.name}{several}"


def _overrides(settings: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value if isinstance(value, str) else show(value)}" for name, value in settings.items()]


def study_of(experiment: Experiment) -> Study:
    """Returns the study of an entry; raises a UsageError if it has none."""
    study: Study | None = experiment.knobs()["STUDY"] if "STUDY" in knob_types(type(experiment)) else None
    if study is None:
        example = 'STUDY=Study(values={"LEARNING_RATE": (0.001, 0.003)})'
        raise UsageError(f"--mode=study needs the knob STUDY of {cls_key(type(experiment))}. Set it, as in {example}.")
    return study


def seeds_of(experiment: Experiment, count: int) -> tuple[int, ...]:
    """Returns `count` values of SEED, the first one that of the experiment."""
    return tuple(experiment.SEED + number for number in range(count))


def checked_cases(
    experiment: Experiment, settings: Mapping[str, Mapping[str, Any]], seeds: tuple[int, ...]
) -> list[Case]:
    """Returns the cases with these settings, by the name of their folder, after the check of all.

    Raises:
      UsageError: a case is invalid; all of those are printed in one table before.
    """
    cases, problems = [], []
    for number, (name, each) in enumerate(settings.items()):
        try:
            built = check(override(type(experiment), _overrides(each))())
            cases.append(Case(number, each, seeds, built.train.num_steps, name))
        except VortaroError as error:
            problems.append((str(number), " ".join(_overrides(each)), str(error)))
    if problems:
        flexible = {"settings": 24, "problem": None}
        columns = ("case", "settings", "problem")
        render.console().print(render.table(columns, problems, right=("case",), flexible=flexible))
        raise UsageError(
            f"{len(problems)} of {len(settings)} cases are invalid (the table above). Change the values that they have."
        )
    return cases


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
