"""The space of a search: mesh shape, rows per step, rematerialization and ZeRO stage of an experiment."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from layers.errors import UsageError, did_you_mean
from layers.remat import REMAT_POLICIES
from registry.experiment import Experiment, cls_key, knob_types
from registry.overrides import override
from runners.mesh import factorizations
from tasks.zero import STAGES


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dimension:
    """One dimension of the space."""

    knob: str  # that it sets
    needs: tuple[str, ...] = ()  # other knobs that an experiment must have
    values: Callable[[Any, int], Iterable[Any]]  # of the knob, for a number of devices
    shows: Callable[[Any, Any], str]  # a value in a table


@dataclasses.dataclass(frozen=True)
class Case:
    """One point of the space: the values of knobs, by dimension."""

    knobs: Mapping[str, Any]
    texts: Mapping[str, str]  # of the table's columns, by dimension

    @property
    def sets(self) -> list[str]:
        """The values of --set that select the case."""
        return [f"{knob}={_text(value)}" for knob, value in self.knobs.items()]

    def of(self, experiment: Experiment) -> Experiment:
        """Returns the experiment with the case's knobs."""
        return override(type(experiment), self.sets)()


def _accumulations(experiment: Any, devices: int) -> list[int]:
    """Returns all numbers of micro-batches that divide the rows of an update, so that its tokens stay the same."""
    rows = experiment.BATCH_SIZE
    return [count for count in range(1, rows + 1) if rows % count == 0]


DIMENSIONS = {
    "mesh": Dimension(
        knob="DEVICE_MESH_SHAPE",
        values=lambda experiment, devices: factorizations(devices, [devices] * len(experiment.MESH_AXES)),
        shows=lambda experiment, shape: "x".join(map(str, shape)),
    ),
    # Rows per step and gradient accumulation are one dimension: their product is the rows of an update.
    "batch": Dimension(
        knob="GRADIENT_ACCUMULATION",
        needs=("BATCH_SIZE",),
        values=_accumulations,
        shows=lambda experiment, count: f"{experiment.BATCH_SIZE // count} x {count}",
    ),
    "remat": Dimension(
        knob="REMAT", values=lambda experiment, devices: REMAT_POLICIES, shows=lambda experiment, name: name
    ),
    "zero": Dimension(
        knob="ZERO_STAGE",
        values=lambda experiment, devices: (None, *STAGES),
        shows=lambda experiment, stage: _text(stage),
    ),
}
OF_DECODING = ("mesh",)  # the dimensions that change a decoding step


def dimensions(text: str | None, experiment: Experiment, step: str) -> list[str]:
    """Returns the dimensions that --over names, in the order of DIMENSIONS; by default all that the experiment has.

    Raises:
      UsageError: a dimension is unknown, or has no effect on this experiment or step.
    """
    known = knob_types(type(experiment))
    missing = {
        name: [knob for knob in (dimension.knob, *dimension.needs) if knob not in known]
        for name, dimension in DIMENSIONS.items()
    }
    of_step = OF_DECODING if step == "decode" else tuple(DIMENSIONS)
    if text is None:
        return [name for name in of_step if not missing[name]]
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in DIMENSIONS:
            raise UsageError(f"Unknown dimension '{name}' in --over={text}. {did_you_mean(name, DIMENSIONS)}")
        if name not in of_step:
            raise UsageError(
                f"--over={text} has no effect with --plan_step={step}: a decoding step has no '{name}'. Set "
                f"--over={','.join(OF_DECODING)}."
            )
        if missing[name]:
            raise UsageError(
                f"--over={text} needs the knob {missing[name][0]}, which {cls_key(type(experiment))} does not have. "
                f"Remove '{name}'."
            )
    return [name for name in DIMENSIONS if name in names]


def cases(experiment: Experiment, devices: int, over: Sequence[str]) -> list[Case]:
    """Returns all combinations of the values of the dimensions `over`.

    Of cases of equal cost the first one ranks first: steps are as large as possible, and nothing is recomputed.
    """
    chosen = {name: DIMENSIONS[name] for name in over}
    return [
        Case(
            {dimension.knob: value for dimension, value in zip(chosen.values(), values, strict=True)},
            {name: chosen[name].shows(experiment, value) for name, value in zip(chosen, values, strict=True)},
        )
        for values in itertools.product(*(dimension.values(experiment, devices) for dimension in chosen.values()))
    ]


def _text(value: Any) -> str:
    """Returns a knob's value as in --set."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "none" if value is None else str(value)
