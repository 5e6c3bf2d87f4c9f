"""Weight conversion: tensors in the names and shapes of other frameworks to weights of an experiment, and back."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from einops import rearrange

from layers.errors import UsageError
from runners.conversion.rules import NameMap, Rule
from runners.conversion.tensors import Tensor
from runners.stacked_arrays import Layer, StackedArrays
from tasks.weight_table import WeightRow

Reader = Callable[[WeightRow, tuple[int, ...]], np.ndarray]
"""Returns the values of a weight, or of its slice at an index of layer and expert."""


def name_of(row: WeightRow) -> str:
    """Returns the row's name as weight tables print it."""
    return row.path.removeprefix("params/")


class Slot(NamedTuple):
    """A tensor of a file, or one of its parts, and the slice of a weight with its values."""

    key: str  # plain key of the tensor
    rule: Rule
    row: WeightRow
    index: tuple[int, ...]  # of the slice in the weight's dimensions of layers and experts

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the dimensions by letter, without padding."""
        letters = self.rule.letters
        return dict(zip(letters, self.row.used[len(self.row.used) - len(letters) :], strict=True))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the complete tensor, if all its parts have the size of this one."""
        if self.rule.axes is None:
            return self.row.shape
        sizes = self.sizes | {"p": self.rule.part[1]}
        return tuple(math.prod(sizes[letter] for letter in axis if letter.isalpha()) for axis in self.rule.axis_groups)

    def of_file(self, values: np.ndarray) -> np.ndarray:
        """Returns the slice of the weight from the values of the tensor, padded with zeros, in the weight's dtype."""
        row, rule = self.row, self.rule
        if rule.axes is None:
            return values.astype(row.dtype)
        ours, (part, parts) = " ".join(rule.letters), rule.part
        if parts > 1:
            values = rearrange(values, f"{rule.axes} -> p {ours}", p=parts, **self.sizes)[part]
        else:
            values = rearrange(values, f"{rule.axes} -> {ours}", **self.sizes)
        stored = row.shape[len(self.index) :]
        return np.pad(values, [(0, full - size) for full, size in zip(stored, values.shape, strict=True)]).astype(
            row.dtype
        )

    def of_weight(self, values: np.ndarray) -> np.ndarray:
        """Returns the slice of the weight without padding, in the order of the rule's letters."""
        if self.rule.axes is None:
            return values
        return values[tuple(slice(size) for size in self.sizes.values())]


class Layout:
    """The slots of all weights of an experiment in files of a format.

    Args:
      names: the name map of the format.
      rows: the weight table of the experiment.
    """

    def __init__(self, names: NameMap, rows: Iterable[WeightRow]):
        self.names, self.rows = names, {row.path: row for row in rows}
        self._arrays = StackedArrays({path: row.shape for path, row in self.rows.items()})
        self.slots = [slot for rule in names.rules for slot in self._slots_of(rule)]

    @property
    def layers(self) -> list[Layer]:
        """The layers of the experiment in order."""
        return self._arrays.layers

    def row_of(self, rule: Rule, layer: Layer | None = None) -> WeightRow | None:
        """Returns the row of a rule, in a layer if the rule is per layer; None if the experiment lacks it."""
        if layer is None:
            return self.rows.get(f"params/{rule.ours}") or self.rows.get(rule.ours)
        path = self._arrays.paths.get(f"params/{rule.ours}", {}).get(layer.place)
        return None if path is None else self.rows[path]

    def _slots_of(self, rule: Rule) -> Iterator[Slot]:
        is_per_layer = "{i}" in rule.theirs
        for number, layer in enumerate(self.layers) if is_per_layer else [(0, None)]:
            row = self.row_of(rule, layer)
            if row is None:
                continue
            index = () if layer is None else (layer.index,)
            if "{e}" not in rule.theirs:
                yield Slot(rule.theirs.format(i=number), rule, row, index)
                continue
            for expert in range(row.used[0]):
                yield Slot(rule.theirs.format(i=number, e=expert), rule, row, (*index, expert))

    def by_row(self) -> dict[str, list[Slot]]:
        """Returns the slots of each row, by its path."""
        found: dict[str, list[Slot]] = {}
        for slot in self.slots:
            found.setdefault(slot.row.path, []).append(slot)
        return found

    def to_theirs(self, read: Reader) -> dict[str, Tensor]:
        """Returns the tensors of a file with the weights that `read` returns; each is read when it is used.

        Raises:
          UsageError: parts of one tensor differ in shape.
        """
        by_key: dict[str, list[Slot]] = {}
        for slot in self.slots:
            by_key.setdefault(slot.key, []).append(slot)
        tensors = {key: self._joined(key, slots, read) for key, slots in by_key.items()}
        if self.names.writes_head:
            tensors.setdefault(self.names.head, tensors[self.names.embedding])
        return {self.names.full(key): self.names.turned(key, tensor) for key, tensor in tensors.items()}

    def _joined(self, key: str, slots: list[Slot], read: Reader) -> Tensor:
        shapes = {slot.shape for slot in slots}
        if len(shapes) > 1:
            sizes = ", ".join("x".join(map(str, tuple(slot.sizes.values()))) for slot in slots)
            raise UsageError(f"Parts of {key} must have equal shapes in {self.names.name} files (got {sizes}).")
        dtype = {"bfloat16": "BF16"}.get(slots[0].row.dtype, "F32")
        return Tensor(shapes.pop(), lambda: _values(slots, read), dtype)


def _values(slots: list[Slot], read: Reader) -> np.ndarray:
    """Returns the values of a tensor from those of its slots."""
    parts = [slot.of_weight(read(slot.row, slot.index)) for slot in slots]
    rule = slots[0].rule
    if rule.axes is None:
        return parts[0]
    if rule.part[1] == 1:
        return rearrange(parts[0], f"{' '.join(rule.letters)} -> {rule.axes}")
    return rearrange(np.stack(parts), f"p {' '.join(rule.letters)} -> {rule.axes}")


def slice_of(arrays: Mapping[str, Any]) -> Reader:
    """Returns a reader of arrays by the paths of their rows, on devices or in host memory: one slice at a time."""
    return lambda row, index: np.asarray(arrays[row.path][index] if index else arrays[row.path])
