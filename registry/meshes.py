"""Meshes of experiments: the order of their devices, and the machines that MESHES names."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from layers.errors import UsageError, did_you_mean

DeviceOrder = Literal["auto", "row_major", "transposed", "ring", "ring_transposed"]
TPUS = {"v2": 2, "v3": 2, "v4": 1, "v5e": 1, "v5p": 1, "v6e": 1}  # JAX devices of a chip
GPUS = ("a100-80", "a100-40", "h100-pcie", "h100-nvl", "h100", "h200", "gh200", "b200")


@dataclasses.dataclass(frozen=True)
class Hardware:
    """Devices of one kind: slices of TPUs, or hosts with GPUs."""

    chip: str  # a name in TPUS or GPUS
    grid: tuple[int, ...]  # chips along each axis of a slice, or (hosts, GPUs of a host)
    slices: int = 1  # of TPUs; exchanges between them cross the network, as those between hosts of GPUs

    @property
    def devices(self) -> int:
        """Number of JAX devices."""
        return self.slices * math.prod(self.grid) * TPUS.get(self.chip, 1)

    @property
    def granules(self) -> int:
        """Number of slices of TPUs, or of hosts with GPUs."""
        return self.slices if self.chip in TPUS else self.grid[0]


def parse_hardware(name: str, label: str) -> Hardware:
    """Returns the hardware `v3:8x8` (chips of a slice), `2*v5e:16x16` (two slices) or `h100:8x8` (hosts x GPUs).

    Args:
      name: the name.
      label: the flag or knob that holds it, for errors.
    Raises:
      UsageError: the name is malformed, or the chip is unknown.
    """
    match = re.fullmatch(r"(?:(\d+)\*)?([\w-]+):(\d+(?:x\d+)+)", name)
    if not match:
        raise UsageError(
            f"{label} must be a TPU and its grid of chips, like v3:8x8, v4:4x4x4 or, for two slices, 2*v5e:16x16, or a "
            f"GPU and hosts x GPUs of a host, like h100:8x8 (got {name})."
        )
    slices, chip, grid = int(match[1] or 1), match[2], tuple(map(int, match[3].split("x")))
    if chip not in (*TPUS, *GPUS):
        raise UsageError(f"Unknown chip '{chip}' in {label}. {did_you_mean(chip, (*TPUS, *GPUS))}")
    if chip in GPUS and (len(grid) != 2 or 0 in grid):
        raise UsageError(f"{label} must be hosts x GPUs of a host. Write for example {chip}:8x8.")
    if chip in GPUS and match[1]:
        raise UsageError(
            f"{label} has slices, which only TPUs have. Write hosts x GPUs: {chip}:{slices * grid[0]}x{grid[1]}."
        )
    if slices == 0 or 0 in grid:
        raise UsageError(f"{label} has no device. Write sizes of at least 1.")
    return Hardware(chip, grid, slices)


def fitting_mesh(meshes: Mapping[str, Sequence[int]], chip: str, devices: int, granules: int) -> str | None:
    """Returns the name in MESHES of a machine with this chip and as many devices; None if there is none.

    Of several, the one with as many slices or hosts comes first.
    """
    found = {name: parse_hardware(name, f"MESHES['{name}']") for name in meshes}
    same = [name for name, hardware in found.items() if (hardware.chip, hardware.devices) == (chip, devices)]
    return min(same, key=lambda name: found[name].granules != granules, default=None)


def require_mesh(name: str, shape: Sequence[int], axes: Sequence[str]) -> None:
    """Checks one item of MESHES.

    Raises:
      UsageError: the name is malformed, or the shape does not fit its devices or the axes.
    """
    label = f"MESHES['{name}'] = {tuple(shape)}"
    devices = parse_hardware(name, f"MESHES['{name}']").devices
    if len(shape) != len(axes):
        raise UsageError(f"{label} and MESH_AXES = {tuple(axes)} differ in length. Change one.")
    if min(shape) < 1 or math.prod(shape) != devices:
        raise UsageError(f"{label} must be sizes of at least 1 whose product is the {devices} devices of {name}.")


def require_across(across: Sequence[int], mesh: Mapping[str, int]) -> dict[str, int]:
    """Returns DCN_MESH_SHAPE by axis.

    Raises:
      UsageError: it does not divide the mesh.
    """
    label = f"DCN_MESH_SHAPE = {tuple(across)}"
    if len(across) != len(mesh):
        raise UsageError(f"{label} and MESH_AXES = {tuple(mesh)} differ in length. Change one.")
    for factor, (axis, size) in zip(across, mesh.items(), strict=True):
        if factor < 1 or size % factor:
            raise UsageError(
                f"{label} must divide the mesh, which has {size} devices along '{axis}' (got {factor}). Set another "
                "DCN_MESH_SHAPE or DEVICE_MESH_SHAPE."
            )
    return dict(zip(mesh, across, strict=True))


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


def folded(shape: tuple[int, ...], devices: int) -> tuple[int, ...]:
    """Distributes the devices over the axes, each prime factor to the axis furthest below its declared size."""
    sizes = [1] * len(shape)
    rest, factor = devices, 2
    while rest > 1:
        while rest % factor:
            factor += 1
        target = [math.inf if size == -1 else size for size in shape]
        axis = max(range(len(shape)), key=lambda i: (target[i] / sizes[i], -i))
        sizes[axis] *= factor
        rest //= factor
    return tuple(sizes)
