"""Lower bounds of a plan that are known without compilation: memory, memory traffic and computation."""

import dataclasses
from collections.abc import Mapping

from registry.experiment import Experiment
from runners.chips import Chip
from runners.planner.cost import from_table
from runners.planner.machine import Machine
from runners.planner.programs.compilation import Step, train_flops
from runners.planner.topologies import planned_cudnn
from runners.session import Session


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableBounds:
    """Bounds from the weight table."""

    bytes: int  # of a device's memory: the state, and sums of gradients over micro-batches
    memory_seconds: float  # the state is read, and after an update written


def table_bounds(experiment: Experiment, mesh: Mapping[str, int], chip: Chip, step: Step) -> TableBounds:
    """Returns the bounds of a step on a mesh.

    The state is an argument of the program, so all of it is in memory at any time. So are sums over micro-batches at
    the end of their loop, in their own dtype. The bound leaves out gradients of a single batch: a program may apply
    one before it computes the next.

    Raises:
      UsageError: the mesh does not divide a weight.
    """
    table = from_table(experiment, mesh, step)
    state = table["weights"] + table["optimizer"]
    sums = table["gradients"] if getattr(experiment, "GRADIENT_ACCUMULATION", 1) > 1 else 0
    traffic = state if step == "decode" else 2 * state
    return TableBounds(bytes=state + sums, memory_seconds=traffic / chip.hbm_bandwidth)


def flops(session: Session, machine: Machine, step: Step) -> int:
    """Returns the FLOPs of an update on all devices, from its trace; zero for a decoding step, which is not traced."""
    if step == "decode":
        return 0
    with session.placed(), planned_cudnn(machine.target):
        return train_flops(session)
