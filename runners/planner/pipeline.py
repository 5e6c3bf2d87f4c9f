"""Pipelines of a plan: their schedule, the bubble, and the loop of the compiled program that runs their ticks."""

import dataclasses
from collections.abc import Collection, Iterator
from typing import Any

from layers.pipeline import Schedule
from runners.planner.programs.hlo import Collective
from runners.session import Session

Plan = dict[str, Any]


def pipelines(session: Session, exchanges: Collection[Collective]) -> list[Plan]:
    """Returns the schedule of each stack that is a pipeline, and the loops of the program that exchange along its axis.

    Args:
      session: the experiment on its mesh.
      exchanges: the collectives of the compiled update.
    """
    found = []
    for stack, schedule in session.pipelines:
        assert stack.pipeline is not None
        axis = stack.pipeline.axis
        along = [one for one in exchanges if (one.kind, one.axis) == ("collective-permute", axis)]
        found.append(
            {
                "axis": axis,
                **dataclasses.asdict(schedule),
                "ticks": schedule.ticks,
                "bubble": schedule.bubble,
                "loops": sorted({one.loops[-1] for one in along if one.loops}),  # their iterations
            }
        )
    return found


def rows(content: Plan) -> Iterator[tuple[str, str]]:
    """Yields the name and value of each pipeline of a plan."""
    for one in content.get("pipelines", ()):
        schedule = Schedule(stages=one["stages"], repeats=one["repeats"], microbatches=one["microbatches"])
        loops = ", ".join(map(str, one["loops"])) or "none"
        is_found = one["ticks"] in one["loops"]
        program = "the program has this loop" if is_found else f"not found in the program, whose loops have {loops}"
        yield f"pipeline over {one['axis']}", f"{schedule}; {program}"
