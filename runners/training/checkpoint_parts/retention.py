"""Which checkpoints of a run are kept."""

import dataclasses
import math
from collections.abc import Sequence

from orbax.checkpoint import checkpoint_managers as managers

from tasks.programs import TrainProgram

LATER = 1e6  # above all losses: those of different phases, on other data, are not compared


@dataclasses.dataclass
class _Kept(managers.PreservationPolicy):
    """Keeps the milestones of a program, its last checkpoints, and the last ones that are not temporary."""

    program: TrainProgram

    def should_preserve(
        self, checkpoints: Sequence[managers.PolicyCheckpointInfo], *, context: managers.PreservationContext
    ) -> list[bool]:
        steps = [checkpoint.step for checkpoint in checkpoints]
        lasting = [step for step in steps if not self.program.is_temporary(step)]
        last = {*lasting[-self.program.keep_last :], *steps[-self.program.keep_last :]}
        return [step in last or self.program.is_milestone(step) for step in steps]


def policy(program: TrainProgram | None) -> managers.PreservationPolicy:
    """Returns the policy of a training's program: its last checkpoints and the best; without one, the last one only."""
    if program is None:
        return managers.LatestN(n=1)
    policies: list[managers.PreservationPolicy] = [_Kept(program)]
    if program.keep_best:
        # BestN keeps the end of the ordered list: descending, so that the lowest loss is last.
        best = managers.BestN(
            get_metric_fn=loss_of, reverse=True, n=program.keep_best, keep_checkpoints_without_metrics=False
        )
        policies.append(best)
    return managers.AnyPreservationPolicy(policies)


def loss_of(metrics: dict[str, float]) -> float:
    """Returns a number that is lowest for the best checkpoint: the loss, in the last phase that has been evaluated."""
    loss = metrics["loss"]
    return (math.inf if loss is None else loss) - LATER * metrics.get("phase", 0)
