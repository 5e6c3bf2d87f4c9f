"""ZeRO: shards optimizer slots, gradients and weights over a data axis of the mesh."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from layers.collectives import dim_of
from layers.errors import UsageError, did_you_mean
from layers.specs import P, axes_of, show_spec
from tasks.weight_table import WeightRow, WeightTable

STAGES = (0, 1, 2, 3)  # of ZeRO


@dataclasses.dataclass(frozen=True, kw_only=True)
class Zero:
    """ZeRO stage and axis: the part of the training state that is split (Rajbhandari et al. 2020, ZeRO, section 5).

    | stage | split over the axis                        | gradients are exchanged                               |
    | ----- | ------------------------------------------ | ----------------------------------------------------- |
    | 0     | nothing                                    | all-reduce, once per update                           |
    | 1     | optimizer slots                            | reduce-scatter, once per update                       |
    | 2     | and gradients                              | reduce-scatter of each layer, once per micro-batch    |
    | 3     | and weights, gathered layer by layer       | the same                                              |

    In stages 1 and 2 each device updates its part of the weights, then all devices gather the complete weights. A
    weight is split along its first dimension that is not yet split and that the axis divides, never along the layer
    dimension of a stack. A weight without such a dimension is replicated. Weights that their own specs split over the
    axis are gathered and scattered as in stage 3. The exception is experts: if the axis splits experts from each other,
    their weights stay in place and the tokens are exchanged instead.
    """

    stage: int
    axis: str

    def __post_init__(self):
        if self.stage not in STAGES:
            raise UsageError(f"ZERO_STAGE must be 0, 1, 2, 3 or none (got {self.stage}).")

    def split(self, row: WeightRow, mesh: Mapping[str, int]) -> P:
        """Returns the row's spec with the axis added, or unchanged if no dimension can take it."""
        if dim_of(row.spec, self.axis) is not None:
            return row.spec
        for dim in range(row.stacked, len(row.shape)):
            free = all(mesh[name] == 1 for name in axes_of(row.spec[dim]))
            if free and row.shape[dim] % mesh[self.axis] == 0:
                return P(*row.spec[:dim], self.axis, *row.spec[dim + 1 :])
        return row.spec

    def place(self, table: WeightTable, mesh: Mapping[str, int]) -> WeightTable:
        """Returns the table with the specs of weights, gradients and slots on a mesh of these axis sizes.

        Raises:
          UsageError: the mesh has no such axis, or it splits a dimension together with another axis.
        """
        if self.axis not in mesh:
            raise UsageError(f"ZERO_AXIS = {self.axis} is not an axis of the mesh. {did_you_mean(self.axis, mesh)}")

        def placed(row: WeightRow) -> WeightRow:
            dim = dim_of(P(*row.spec[row.stacked :]), self.axis)
            if not row.learned:
                if dim is not None:
                    raise UsageError(
                        f"ZERO_AXIS = {self.axis} splits {row.path}, which has no gradient. Do not split it."
                    )
                return row
            with_axis = [axes_of(entry) for entry in row.spec if self.axis in axes_of(entry)]
            if any(mesh[name] > 1 for names in with_axis for name in names if name != self.axis):
                spec = show_spec(P(*row.spec[row.stacked :]))
                raise UsageError(
                    f"WEIGHTS.{row.key} = {spec} splits one dimension over ZERO_AXIS = {self.axis} and another axis. "
                    f"Give each axis a dimension of its own, or set ZERO_STAGE=none."
                )
            split = self.split(row, mesh)
            by_stage = {"slot_spec": 1, "gradient_spec": 2, "spec": 3}
            specs = {name: split for name, stage in by_stage.items() if self.stage >= stage}
            return dataclasses.replace(row, **specs, is_local=dim is not None and row.letters[dim : dim + 1] == "e")

        return table.mapped(placed)

    def check_batch(self, rows: P) -> None:
        """Raises a UsageError unless the axis splits the batch's rows, placed by `rows`."""
        if self.axis not in axes_of(rows[0]):
            raise UsageError(
                f"ZERO_AXIS = {self.axis} must split the rows of the batch (got ACTIVATIONS.tokens_bs = "
                f"{show_spec(rows)})."
            )


def placed_table(task: Any, mesh: Mapping[str, int]) -> WeightTable:
    """Returns the task's weight table on a mesh, with its specs split further if the task has ZeRO."""
    table = task.weight_table()
    return table if task.zero is None else task.zero.place(table, mesh)
