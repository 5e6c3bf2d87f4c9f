"""Device meshes: devices in the order of DEVICE_ORDER, TPU slices along the first axis."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from layers.errors import UsageError
from registry.device_order import DeviceOrder, device_ids


def make_mesh(shape: Mapping[str, int], order: DeviceOrder, devices: Sequence[jax.Device]) -> Mesh:
    """Returns the mesh with these axis sizes and the devices in this order."""
    sizes, axes = tuple(shape.values()), tuple(shape)
    kinds = (AxisType.Auto,) * len(axes)
    slices = len({getattr(device, "slice_index", 0) for device in devices}) if devices[0].platform == "tpu" else 1
    if slices > 1:
        return Mesh(_over_slices(sizes, axes, slices, devices), axes, kinds)
    if order == "auto":
        placed = mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
        return Mesh(placed, axes, kinds)
    by_id = np.array(sorted(devices, key=lambda device: device.id))
    return Mesh(by_id[device_ids(order, sizes)], axes, kinds)


def _over_slices(sizes: tuple[int, ...], axes: tuple[str, ...], slices: int, devices: Sequence[jax.Device]) -> Any:
    """Returns devices of several TPU slices: the first mesh axis spans the slices, over the network between hosts."""
    if sizes[0] % slices:
        raise UsageError(
            f"The number of TPU slices must divide the mesh axis '{axes[0]}' = {sizes[0]} (got {slices} slices). Set "
            f"another DEVICE_MESH_SHAPE."
        )
    inside, across = (sizes[0] // slices, *sizes[1:]), (slices, *(1 for _ in sizes[1:]))
    return mesh_utils.create_hybrid_device_mesh(inside, across, devices, allow_split_physical_axes=True)
