"""Order of the devices in a mesh."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from layers.errors import UsageError

DeviceOrder = Literal["auto", "row_major", "transposed", "ring", "ring_transposed"]


def device_ids(order: DeviceOrder, shape: Sequence[int]) -> np.ndarray:
    """Returns device ids in a two-dimensional mesh of `shape`.

    row_major: id = row * columns + column. transposed: id = column * rows + row. ring: rows and columns both ascend
    over the even numbers and descend over the odd ones, so that neighbors along an axis, including the last and the
    first, are at most two apart: a ring on chips in a line whose ends are not linked. ring_transposed: the ring of the
    transposed shape, transposed.

    Raises:
      UsageError: the mesh does not have two dimensions.
    """
    if len(shape) != 2:
        raise UsageError(f"DEVICE_ORDER = '{order}' needs a mesh of two axes (got shape {tuple(shape)}). Set auto.")
    rows, columns = shape
    if order == "transposed":
        return np.arange(rows * columns).reshape(columns, rows).T
    if order == "ring":
        return _out_and_back(rows)[:, None] * columns + _out_and_back(columns)
    if order == "ring_transposed":
        return device_ids("ring", (columns, rows)).T
    return np.arange(rows * columns).reshape(rows, columns)


def _out_and_back(count: int) -> np.ndarray:
    """Returns 0, 2, 4, ..., 5, 3, 1."""
    numbers = np.arange(count)
    return np.concatenate([numbers[::2], numbers[1::2][::-1]])
