"""Device meshes: devices in the order of DEVICE_ORDER, slices and hosts as DCN_MESH_SHAPE places them."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from layers.errors import UsageError
from registry.meshes import DeviceOrder, device_ids


def make_mesh(
    shape: Mapping[str, int],
    order: DeviceOrder,
    devices: Sequence[jax.Device],
    across: Mapping[str, int] | None = None,
) -> Mesh:
    """Returns the mesh with these axis sizes and the devices in this order.

    Args:
      shape: sizes by axis.
      order: of the devices inside a slice or host, or of all.
      devices: as many as the mesh has.
      across: the factor of each size that lies across slices or hosts (`create_hybrid_device_mesh`'s `dcn_mesh_shape`).
        None: TPU slices lie along the first axis, and hosts follow from the order.
    Raises:
      UsageError: `across` is not for as many slices or hosts as there are.
    """
    sizes, axes = tuple(shape.values()), tuple(shape)
    kinds = (AxisType.Auto,) * len(axes)
    blocks = granules(devices, across)
    if across is None and devices[0].platform == "tpu" and len(blocks) > 1:
        across = _along_first_axis(shape, len(blocks))
    if across is None:
        return Mesh(_placed(sizes, order, devices), axes, kinds)
    factors = tuple(across.values())
    inside = tuple(size // factor for size, factor in zip(sizes, factors, strict=True))
    placed = np.stack([_placed(inside, order, block) for block in blocks]).reshape(*factors, *inside)
    # Of each axis, the factor across varies slowest: (d0, d1, i0, i1) becomes (d0, i0, d1, i1).
    places = [place for axis in range(len(axes)) for place in (axis, len(axes) + axis)]
    return Mesh(placed.transpose(places).reshape(sizes), axes, kinds)


def granules(devices: Sequence[jax.Device], across: Mapping[str, int] | None = None) -> list[list[jax.Device]]:
    """Returns the devices by slice (TPUs) or host (GPUs), in order; exchanges between them cross the network.

    In a run of several processes JAX puts GPUs into slices by host, or by NVLink domain, however many processes a host
    has. GPUs that are not attached are of the host of their process. Virtual CPU devices are in blocks of equal size,
    as many as `across` has.

    Raises:
      UsageError: `across` is not for as many.
    """
    count = None if across is None else math.prod(across.values())
    by_id = sorted(devices, key=lambda device: device.id)
    if devices[0].platform == "cpu":
        size = -(-len(by_id) // (count or 1))
        blocks = [by_id[start : start + size] for start in range(0, len(by_id), size)]
    else:
        slices = [getattr(device, "slice_index", 0) or 0 for device in by_id]
        is_by_slice = devices[0].platform == "tpu" or len(set(slices)) > 1 or jax.process_count() > 1
        keys = slices if is_by_slice else [device.process_index for device in by_id]
        blocks = [
            [device for device, other in zip(by_id, keys, strict=True) if other == key] for key in sorted(set(keys))
        ]
    if count is not None and (len(blocks) != count or len({len(block) for block in blocks}) > 1):
        shape, found = tuple(across.values()) if across else (), [len(block) for block in blocks]
        raise UsageError(
            f"DCN_MESH_SHAPE = {shape} needs {count} slices or hosts of as many devices (got {len(blocks)} of {found} "
            "devices). Set a DCN_MESH_SHAPE whose product is their number, or none."
        )
    return blocks


def granule_numbers(mesh: Mesh, across: Mapping[str, int] | None = None) -> list[int]:
    """Returns the number of the slice or host of each device of a mesh, in the mesh's order."""
    devices = list(mesh.devices.flat)
    numbers = {device.id: number for number, block in enumerate(granules(devices, across)) for device in block}
    return [numbers[device.id] for device in devices]


def granule_factors(shape: Mapping[str, int], numbers: Sequence[int]) -> dict[str, int]:
    """Returns the slices or hosts along each axis of a mesh, from the number of that of each device."""
    places = np.reshape(numbers, tuple(shape.values()))
    lines = {axis: np.moveaxis(places, place, 0).reshape(size, -1) for place, (axis, size) in enumerate(shape.items())}
    return {axis: len(set(line[:, 0].tolist())) for axis, line in lines.items()}


def factorizations(number: int, sizes: Iterable[int]) -> Iterator[tuple[int, ...]]:
    """Yields all tuples with product `number` that have one divisor of each size, in ascending order."""
    choices = [[factor for factor in range(1, n + 1) if n % factor == 0 and number % factor == 0] for n in sizes]
    yield from (factors for factors in itertools.product(*choices) if math.prod(factors) == number)


def _along_first_axis(shape: Mapping[str, int], slices: int) -> dict[str, int]:
    (axis, size), *_ = shape.items()
    if size % slices:
        raise UsageError(
            f"The number of TPU slices must divide the mesh axis '{axis}' = {size} (got {slices} slices). Set "
            "another DEVICE_MESH_SHAPE, or DCN_MESH_SHAPE."
        )
    return {name: slices if name == axis else 1 for name in shape}


def _placed(sizes: tuple[int, ...], order: DeviceOrder, devices: Sequence[jax.Device]) -> Any:
    """Returns the devices of one slice or host, or all, as an array of these sizes."""
    if order == "auto":
        return mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
    by_id = np.array(sorted(devices, key=lambda device: device.id))
    return by_id[device_ids(order, sizes)]
