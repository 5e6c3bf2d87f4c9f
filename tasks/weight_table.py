"""The weight table: one row per weight, from an abstract init. Placement, decay and learning rates follow from it."""

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
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
    decay: bool  # whether weight decay acts on it
    rate: float  # factor on the learning rate
    gradient_spec: P  # placement of its gradient during accumulation
    slot_spec: P  # placement of the optimizer's slots of its shape, and of the weight during the update
    is_local: bool = False  # the ZeRO axis splits it by experts: each device uses its own part, without a gather

    @property
    def learned(self) -> bool:
        """Returns whether the weight is trained by gradient."""
        return self.path.startswith("params/")

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

    def __init__(
        self,
        boxed: Any,
        decays: Callable[[str, str], bool] = lambda role, key: False,
        rate: Callable[[str, int], float] = lambda role, fan_in: 1.0,
    ):
        """Reads rows from `boxed`, the abstract variables of a model, `Weight` boxes at the leaves.

        `decays(role, key)` is whether weight decay acts; `rate(role, fan_in)` is the factor on the learning rate.
        """
        leaves, self._treedef = jax.tree_util.tree_flatten_with_path(boxed, is_leaf=meta.is_axis_metadata)
        self.rows = [_row(path, leaf, decays, rate) for path, leaf in leaves]

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


def _row(path: Any, leaf: Any, decays: Callable[[str, str], bool], rate: Callable[[str, int], float]) -> WeightRow:
    name = "/".join(str(part.key) for part in path)
    if not isinstance(leaf, Weight):
        raise SpecError(f"Weight '{name}' was made without layers.weights.weight.weight, so it has no partition spec.")
    shape = tuple(leaf.value.shape)
    learned = name.startswith("params/")
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
        decay=learned and decays(leaf.role, leaf.key),
        rate=rate(leaf.role, leaf.fan_in) if learned else 0.0,
        gradient_spec=leaf.spec,
        slot_spec=leaf.spec,
    )
