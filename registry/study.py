"""Studies: an entry's cases with other knobs, config fields and seeds, and the order in which they are trained."""

import dataclasses
import itertools
import math
import random
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from layers.errors import UsageError, did_you_mean

Search = Literal["grid", "zipped", "random", "halving"]


@dataclasses.dataclass(frozen=True)
class Uniform:
    """Numbers from `low` to `high`, for how="random"; with `log` their logarithm is uniform."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self):
        if not self.low < self.high or (self.log and self.low <= 0):
            raise UsageError(f"{self} has no numbers. Give low < high, and low above 0 with log.")

    def draw(self, rng: random.Random) -> float:
        """Returns a number, with four significant digits."""
        ends = [math.log(end) if self.log else end for end in (self.low, self.high)]
        number = rng.uniform(*ends)
        return float(f"{math.exp(number) if self.log else number:.4g}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """The cases of an entry: the value of the knob STUDY, which `--mode=study` trains.

    * "grid": all combinations of the values.
    * "zipped": the first value of every setting, then the second of every one, and so on.
    * "random": `cases` draws of one value, or a number of a `Uniform`, of every setting.
    * "halving": the cases of a grid; each is trained for a part of NUM_STEPS, and the best one of `keep` continues
      (Jamieson and Talwalkar 2016, successive halving). The last rung has all of NUM_STEPS.
    """

    how: Search = "grid"
    values: Mapping[str, Sequence[Any] | Uniform]  # by knob, or path of a config field, as in --set
    seeds: int = 1  # runs of each case, with SEED, SEED + 1, ...; their mean decides
    cases: int | None = None  # of "random"
    seed: int = 0  # of the draws of "random"
    keep: int = 3  # of "halving": one of so many cases continues
    rungs: int = 3  # of "halving": 1 trains all cases to the end

    def __post_init__(self):
        kinds = typing.get_args(Search)
        if self.how not in kinds:
            raise UsageError(f"Unknown search '{self.how}' of a study. {did_you_mean(self.how, kinds)}")
        if not self.values:
            raise UsageError('A study needs values. Give for example values={"LEARNING_RATE": (0.001, 0.01)}.')
        for name, values in self.values.items():
            if isinstance(values, Uniform):
                if self.how != "random":
                    raise UsageError(f"{name} of a study is a range (got how = {self.how!r}). Set how='random'.")
            elif not isinstance(values, Sequence) or isinstance(values, str) or not values:
                raise UsageError(f"{name} of a study takes a tuple of values, not {values!r}.")
        if (self.how == "random") != (self.cases is not None):
            given = f"how = {self.how!r}, cases = {self.cases}"
            raise UsageError(f"cases of a study and how = 'random' need each other (got {given}).")
        for name, least in (("seeds", 1), ("keep", 2), ("rungs", 1), ("cases", 1)):
            if (value := getattr(self, name)) is not None and value < least:
                raise UsageError(f"{name} of a study must be at least {least} (got {value}).")
        lengths = {name: len(values) for name, values in self.values.items() if not isinstance(values, Uniform)}
        if self.how == "zipped" and len(set(lengths.values())) > 1:
            raise UsageError(f"Settings of a zipped study have equally many values (got {lengths}).")

    def settings(self) -> list[dict[str, Any]]:
        """Returns the values of each case, without seeds, by knob or path."""
        names = list(self.values)
        return [dict(zip(names, each, strict=True)) for each in self._combined()]

    def _combined(self) -> Iterator[tuple[Any, ...]]:
        if self.how == "random":
            rng = random.Random(self.seed)
            draw = lambda values: values.draw(rng) if isinstance(values, Uniform) else rng.choice(list(values))
            yield from (tuple(draw(values) for values in self.values.values()) for _ in range(self.cases or 0))
            return
        lists = [tuple(values) for values in self.values.values() if not isinstance(values, Uniform)]
        yield from zip(*lists, strict=True) if self.how == "zipped" else itertools.product(*lists)

    @property
    def _all_rungs(self) -> range:
        return range(self.rungs if self.how == "halving" else 1)

    def ends(self, steps: int) -> list[int]:
        """Returns the step at which each rung ends; the last is `steps`, the only one but for "halving"."""
        return [max(1, round(steps / self.keep**rung)) for rung in reversed(self._all_rungs)]

    def cases_of_rungs(self) -> list[int]:
        """Returns how many cases each rung trains."""
        counts = [len(self.settings())]
        for _ in self._all_rungs[1:]:
            counts.append(-(-counts[-1] // self.keep))
        return counts
