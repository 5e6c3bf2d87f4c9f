"""The weight table: one row per weight, from an abstract init. Placement and optimizers of weights follow from it."""

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from flax import traverse_util
from flax.core import meta

from layers.errors import SpecError, did_you_mean
from layers.specs import P, axes_of, show_spec
from layers.weights.weight import Weight


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightRow:
    """One weight: shape, dtype, role, initial values, optimizer settings and partition specs."""

    path: str  # "params/stack/block/mixer/query_mnd"
    key: str  # its name in the experiment's WEIGHTS
    shape: tuple[int, ...]
    dtype: str
    spec: P  # one entry per dimension
    role: str
    init: str
    stddev: float  # standard deviation of the initial values
    fan_in: int
    used: tuple[int, ...]  # the shape of one layer without padding
    method: str = "none"  # the optimizer's method that updates it; "none" if it is not trained
    decay: bool = False  # whether weight decay acts on it
    rate: float = 0.0  # factor on the learning rate
    gradient_spec: P  # placement of its gradient during accumulation
    slot_spec: P  # placement of the optimizer's slots of its shape, and of the weight during the update
    is_local: bool = False  # the ZeRO axis splits it by experts: each device uses its own part, without a gather

    @property
    def letters(self) -> str:
        """The letters of its dimensions, without layers: "mnd" of `query_mnd`; empty for a scalar."""
        return self.key.rpartition("_")[2]

    @property
    def learned(self) -> bool:
        """Returns whether the weight is a parameter: trained by gradient, unless its method is "none"."""
        return self.path.startswith("params/")

    @property
    def trained(self) -> bool:
        """Returns whether the weight has a gradient and is updated."""
        return self.learned and self.method != "none"

    @property
    def stacked(self) -> int:
        """Number of leading dimensions that index layers."""
        return len(self.shape) - len(self.used)

    @property
    def size(self) -> int:
        """Number of elements, without padding."""
        return math.prod(self.shape[: self.stacked]) * math.prod(self.used)

    @property
    def bytes(self) -> int:
        """Bytes of the complete weight on all devices, padding included."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def bytes_per_device(self, mesh: Mapping[str, int]) -> int:
        """Returns the bytes of one device's shard on a mesh of these axis sizes."""
        return self.bytes // shards(self.spec, mesh)


def shards(spec: P, mesh: Mapping[str, int]) -> int:
    """Returns the number of shards into which `spec` splits an array."""
    return math.prod(mesh[axis] for entry in spec for axis in axes_of(entry))


class WeightTable:
    """The rows of an experiment's weights, in the tree structure of its variables."""

    rows: list[WeightRow]

    def __init__(self, boxed: Any):
        """Reads rows from `boxed`, the abstract variables of a model, `Weight` boxes at the leaves.

        No row has an optimizer yet: see `tasks.optimizers.optimizer.Optimizer.assign`.
        """
        leaves, self._treedef = jax.tree_util.tree_flatten_with_path(boxed, is_leaf=meta.is_axis_metadata)
        self.rows = [_row(path, leaf) for path, leaf in leaves]

    def __iter__(self) -> Iterator[WeightRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def mapped(self, fn: Callable[[WeightRow], WeightRow]) -> "WeightTable":
        """Returns the table with `fn(row)` in place of each row."""
        table = copy.copy(self)
        table.rows = [fn(row) for row in self.rows]
        return table

    def tree(self, fn: Callable[[WeightRow], Any]) -> Any:
        """Returns `fn(row)` for every row, in the tree structure of the variables."""
        return jax.tree_util.tree_unflatten(self._treedef, [fn(row) for row in self.rows])

    @property
    def params(self) -> Any:
        """The rows of trained weights, in the tree structure of `trained`."""
        return self.trained(self.tree(lambda row: row)["params"])

    def trained(self, params: Any) -> Any:
        """Returns the part of `params`, a tree with an entry for each parameter, that is trained."""
        frozen = self._frozen
        flat = traverse_util.flatten_dict(params, sep="/") if frozen else {}
        kept = {path: value for path, value in flat.items() if path not in frozen}
        return traverse_util.unflatten_dict(kept, sep="/") if frozen else params

    def with_trained(self, trained: Any, params: Any) -> Any:
        """Returns `params` with the values of `trained` in place of its own."""
        if not self._frozen:
            return trained
        flat = [traverse_util.flatten_dict(tree, sep="/") for tree in (params, trained)]
        return traverse_util.unflatten_dict(flat[0] | flat[1], sep="/")

    @property
    def _frozen(self) -> set[str]:
        """Paths of parameters that are not trained, inside the tree of parameters."""
        return {row.path.removeprefix("params/") for row in self.rows if row.learned and not row.trained}

    @property
    def abstract(self) -> Any:
        """Shapes and dtypes, in the tree structure of the variables."""
        return self.tree(lambda row: jax.ShapeDtypeStruct(row.shape, row.dtype))

    def check(self, mesh: Mapping[str, int]) -> None:
        """Checks the specs of every row against the mesh.

        Raises:
          SpecError: a spec has the wrong length, an axis is not in the mesh or is used twice, or a dimension is not
            divisible by its axes.
        """
        for row in self.rows:
            check_spec(f"weight '{row.path}'", row.spec, row.shape, mesh)
            check_spec(f"the optimizer's slot of '{row.path}'", row.slot_spec, row.shape, mesh)


def check_spec(owner: str, spec: P, shape: tuple[int, ...], mesh: Mapping[str, int]) -> None:
    """Raises a SpecError unless an array of `shape` can be split by `spec` on `mesh` (axis name to size)."""
    if len(spec) != len(shape):
        raise SpecError(f"The spec {show_spec(spec)} of {owner} has {len(spec)} entries for the shape {shape}.")
    used: list[str] = []
    for size, entry in zip(shape, spec, strict=True):
        for axis in axes_of(entry):
            if axis not in mesh:
                raise SpecError(f"The spec {show_spec(spec)} of {owner} names '{axis}'. {did_you_mean(axis, mesh)}")
            if axis in used:
                raise SpecError(f"The spec {show_spec(spec)} of {owner} uses mesh axis '{axis}' twice.")
            used.append(axis)
        parts = math.prod(mesh[axis] for axis in axes_of(entry))
        if size % parts:
            raise SpecError(
                f"Dimension {size} of {owner}, shape {shape}, is split by {show_spec(spec)} into {parts} parts, "
                f"which do not divide it. Choose another size, another mesh or another dimension."
            )


def _row(path: Any, leaf: Any) -> WeightRow:
    name = "/".join(str(part.key) for part in path)
    if not isinstance(leaf, Weight):
        raise SpecError(f"Weight '{name}' was made without layers.weights.weight.weight, so it has no partition spec.")
    shape = tuple(leaf.value.shape)
    return WeightRow(
        path=name,
        key=leaf.key,
        shape=shape,
        dtype=str(leaf.value.dtype),
        spec=leaf.spec,
        role=leaf.role,
        init=leaf.init,
        stddev=leaf.stddev,
        fan_in=leaf.fan_in,
        used=leaf.used,
        gradient_spec=leaf.spec,
        slot_spec=leaf.spec,
    )
