"""ZeRO: optimizer slots, gradients and weights split over devices that work on different rows."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from layers.collectives import dim_of
from layers.errors import UsageError, did_you_mean
from layers.specs import P, axes_of, show_spec
from tasks.weight_table import WeightRow, WeightTable


@dataclasses.dataclass(frozen=True, kw_only=True)
class Zero:
    """How much of the training state is split over a data axis (Rajbhandari et al. 2020, ZeRO, section 5).

    | stage | split over the axis                        | gradients are exchanged                               |
    | ----- | ------------------------------------------ | ----------------------------------------------------- |
    | 0     | nothing                                    | all-reduce, once per update                           |
    | 1     | optimizer slots                            | reduce-scatter, once per update                       |
    | 2     | and gradients                              | reduce-scatter of each layer, once per micro-batch    |
    | 3     | and weights, gathered layer by layer       | the same                                              |

    Behind stages 1 and 2 each device updates its part of the weights, and all gather the whole. A weight takes the axis
    at the first dimension that is not split and that the axis divides; layers of a stack are not split from each other.
    One without such a dimension is held whole. Weights that their own specs split over the axis are gathered and
    scattered like those of stage 3; those of experts, if it splits experts from each other, stay where they are, and
    tokens change devices.
    """

    stage: int
    axis: str

    def __post_init__(self):
        if self.stage not in (0, 1, 2, 3):
            raise UsageError(f"ZERO_STAGE = {self.stage} must be 0, 1, 2, 3 or none.")

    def split(self, row: WeightRow, mesh: Mapping[str, int]) -> P:
        """The row's spec with the axis in it, where it fits."""
        if dim_of(row.spec, self.axis) is not None:
            return row.spec
        for dim in range(row.stacked, len(row.shape)):
            free = all(mesh[name] == 1 for name in axes_of(row.spec[dim]))
            if free and row.shape[dim] % mesh[self.axis] == 0:
                return P(*row.spec[:dim], self.axis, *row.spec[dim + 1 :])
        return row.spec

    def place(self, table: WeightTable, mesh: Mapping[str, int]) -> WeightTable:
        """The table with the specs that weights, gradients and slots have on a mesh of these axis sizes.

        Raises:
          UsageError: the mesh has no such axis, or it splits a dimension together with another axis.
        """
        if self.axis not in mesh:
            raise UsageError(f"ZERO_AXIS = {self.axis} is no axis of the mesh. {did_you_mean(self.axis, mesh)}")

        def placed(row: WeightRow) -> WeightRow:
            letters = row.key.rpartition("_")[2]
            dim = dim_of(P(*row.spec[row.stacked :]), self.axis)
            if not row.learned:
                if dim is not None:
                    raise UsageError(
                        f"ZERO_AXIS = {self.axis} splits {row.path}, which has no gradient: do not split it."
                    )
                return row
            with_axis = [axes_of(entry) for entry in row.spec if self.axis in axes_of(entry)]
            if any(mesh[name] > 1 for names in with_axis for name in names if name != self.axis):
                spec = show_spec(P(*row.spec[row.stacked :]))
                raise UsageError(
                    f"WEIGHTS.{row.key} = {spec} splits one dimension over ZERO_AXIS = {self.axis} and another axis: "
                    f"give each a dimension of its own, or say ZERO_STAGE=none."
                )
            split = self.split(row, mesh)
            by_stage = {"slot_spec": 1, "gradient_spec": 2, "spec": 3}
            specs = {name: split for name, stage in by_stage.items() if self.stage >= stage}
            return dataclasses.replace(row, **specs, is_local=dim is not None and letters[dim : dim + 1] == "e")

        return table.mapped(placed)

    def check_batch(self, rows: P) -> None:
        """Raises a UsageError unless the axis splits the batch's rows, placed by `rows`."""
        if self.axis not in axes_of(rows[0]):
            raise UsageError(
                f"ZERO_AXIS = {self.axis} must split the rows of the batch, but ACTIVATIONS.tokens_bs is "
                f"{show_spec(rows)}."
            )


def placed_table(task: Any, mesh: Mapping[str, int]) -> WeightTable:
    """The task's weight table on a mesh: as its specs say, or split further."""
    table = task.weight_table()
    return table if task.zero is None else task.zero.place(table, mesh)
