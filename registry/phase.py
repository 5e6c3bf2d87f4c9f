"""Phases of a training run: the updates, the learning rate and the knobs of each."""

import dataclasses
import typing
from collections.abc import Sequence
from typing import Any, Literal

from layers.errors import UsageError, did_you_mean

PhaseSchedule = Literal["constant", "linear", "cosine", "sqrt"]


@dataclasses.dataclass(frozen=True, init=False)
class Phase:
    """A part of a run, with a learning rate or knobs of its own: an item of PHASES.

    The first phase has the experiment's own knobs; each later one has these too, except those that it states. So a run
    with a warm-up, a constant rate and a decay over the last 200 updates (Hu et al. 2024, MiniCPM, section 4) has
    SCHEDULE = "constant" and `PHASES = (Phase(), Phase(steps=200, schedule="sqrt", end_factor=0))`.

    Args:
      steps: number of updates. None: what the other phases leave of NUM_STEPS; of one phase at most.
      schedule: how the learning rate goes from its value at the end of the phase before to `end_factor`: see
        tasks.optimizers.schedules.Segment. "constant" keeps it. None follows SCHEDULE.
      end_factor: learning rate at the end over the peak; None is END_FACTOR.
      knobs: values of this phase, by name: SEQ_LEN, BATCH_SIZE, MIXTURE, ROTARY_BASE, ... All but those that change
        weights, slots, the mesh or the duration.
    Raises:
      UsageError: steps are below 1, the schedule is unknown, or `end_factor` belongs to none.
    """

    steps: int | None
    schedule: PhaseSchedule | None
    end_factor: float | None
    knobs: tuple[tuple[str, Any], ...]

    def __init__(
        self,
        *,
        steps: int | None = None,
        schedule: PhaseSchedule | None = None,
        end_factor: float | None = None,
        **knobs: Any,
    ):
        if steps is not None and (not isinstance(steps, int) or steps < 1):
            raise UsageError(f"steps of a phase must be an integer above 0 (got {steps}).")
        kinds = typing.get_args(PhaseSchedule)
        if schedule is not None and schedule not in kinds:
            raise UsageError(f"Unknown schedule '{schedule}' of a phase. {did_you_mean(schedule, kinds)}")
        if end_factor is not None and schedule in (None, "constant"):
            raise UsageError(f"end_factor = {end_factor} needs a schedule. Set schedule='linear', 'cosine' or 'sqrt'.")
        if end_factor is not None and not end_factor >= 0:
            raise UsageError(f"end_factor of a phase must be at least 0 (got {end_factor}).")
        if wrong := [name for name in knobs if not name.isupper()]:
            fields = ("steps", "schedule", "end_factor", wrong[0].upper())
            raise UsageError(f"Phase has no field '{wrong[0]}'. {did_you_mean(wrong[0], fields)}")
        factor = None if end_factor is None else float(end_factor)
        values = {"steps": steps, "schedule": schedule, "end_factor": factor, "knobs": tuple(knobs.items())}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        fields = {"steps": self.steps, "schedule": self.schedule, "end_factor": self.end_factor}
        stated = {name: value for name, value in fields.items() if value is not None} | dict(self.knobs)
        return f"Phase({', '.join(f'{name}={value!r}' for name, value in stated.items())})"


def phase_steps(phases: Sequence[Phase], total: int) -> tuple[int, ...]:
    """Returns the number of updates of each phase of a run of `total` updates.

    Raises:
      UsageError: several phases have no `steps`, or their sum is not `total`.
    """
    known = sum(phase.steps or 0 for phase in phases)
    open_ones = [number for number, phase in enumerate(phases) if phase.steps is None]
    if len(open_ones) > 1:
        raise UsageError(
            f"PHASES[{open_ones[0]}] and PHASES[{open_ones[1]}] have no steps. One of them needs a number."
        )
    if open_ones and known >= total:
        raise UsageError(
            f"NUM_STEPS must be above {known}, the updates of the other phases, because PHASES[{open_ones[0]}] has the "
            f"rest (got {total})."
        )
    if not open_ones and known != total:
        raise UsageError(f"PHASES have {known} updates together (got NUM_STEPS = {total}). Set NUM_STEPS={known}.")
    return tuple(total - known if phase.steps is None else phase.steps for phase in phases)
