"""Lower bounds of a plan that are known without compilation: memory, memory traffic, exchanges and computation."""

import dataclasses
from collections.abc import Mapping, Sequence

from runners.machine.chips import Chip
from runners.planner.cost import from_table
from runners.planner.programs.compilation import Step
from runners.planner.search.exchanges import Times, Update, times


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableBounds:
    """Bounds from the weight table."""

    bytes: int  # of a device's memory: the state, and sums of gradients over micro-batches
    memory_seconds: float  # the state is read, and after an update written
    exchange_seconds: float  # the longest exchange
    exchanges_seconds: float  # all exchanges


def table_bounds(
    update: Update, mesh: Mapping[str, int], granules: Sequence[int], chip: Chip, step: Step
) -> TableBounds:
    """Returns the bounds of a step on a mesh.

    The state is an argument of the program, so all of it is in memory at any time. So are sums over micro-batches at
    the end of their loop, in their own dtype. The bound leaves out gradients of a single batch: a program may apply
    one before it computes the next. A decoding step has no exchange that is known before compilation.

    Args:
      update: the task and its weight table.
      mesh: axis name to size.
      granules: number of the slice or host of each device, in the order of the mesh.
      chip: whose speeds are used.
      step: an update, or a decoding step.
    """
    table = from_table(update.task, update.table, mesh, step)
    state = table["weights"] + table["optimizer"]
    sums = table["gradients"] if update.task.gradient_accumulation > 1 else 0
    traffic = state if step == "decode" else 2 * state
    exchanges = Times(longest=0.0, sum=0.0) if step == "decode" else times(update, mesh, granules, chip)
    return TableBounds(
        bytes=state + sums,
        memory_seconds=traffic / chip.hbm_bandwidth,
        exchange_seconds=exchanges.longest,
        exchanges_seconds=exchanges.sum,
    )
