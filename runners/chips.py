"""Accelerator specifications: FLOP/s, memory and bandwidths, from the manufacturers' data sheets."""

import dataclasses
from typing import Any

GIB = 2**30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """Specification of one JAX device: a core of TPU v2 and v3, a chip of all others."""

    name: str  # the name in `--chip` and `--topology`
    kinds: tuple[str, ...]  # prefixes of jax.Device.device_kind; the longest match decides
    flops: float  # bfloat16 matrix-product operations per second
    hbm_bytes: int  # memory size in bytes
    hbm_bandwidth: float  # bytes per second
    link_bandwidth: float  # bytes per second that a device sends along one mesh axis, sum of both directions of a ring


# Link bandwidths of TPUs: both directions of one torus axis, shared by the two cores of a v2 or v3 chip. GPUs: NVLink,
# one direction.
CHIPS = {
    chip.name: chip
    for chip in (
        Chip(name="v2", kinds=("TPU v2",), flops=22.5e12, hbm_bytes=8 * GIB, hbm_bandwidth=350e9, link_bandwidth=62e9),
        Chip(name="v3", kinds=("TPU v3",), flops=61.5e12, hbm_bytes=16 * GIB, hbm_bandwidth=450e9, link_bandwidth=82e9),
        Chip(
            name="v4", kinds=("TPU v4",), flops=275e12, hbm_bytes=32 * GIB, hbm_bandwidth=1228e9, link_bandwidth=100e9
        ),
        Chip(
            name="v5e",
            kinds=("TPU v5 lite",),
            flops=197e12,
            hbm_bytes=16 * GIB,
            hbm_bandwidth=819e9,
            link_bandwidth=100e9,
        ),
        Chip(
            name="v5p", kinds=("TPU v5",), flops=459e12, hbm_bytes=95 * GIB, hbm_bandwidth=2765e9, link_bandwidth=200e9
        ),
        Chip(
            name="v6e",
            kinds=("TPU v6 lite",),
            flops=918e12,
            hbm_bytes=32 * GIB,
            hbm_bandwidth=1640e9,
            link_bandwidth=200e9,
        ),
        Chip(
            name="a100",
            kinds=("NVIDIA A100",),
            flops=312e12,
            hbm_bytes=80 * GIB,
            hbm_bandwidth=2039e9,
            link_bandwidth=300e9,
        ),
        # NVIDIA A100 data sheet (2021): the 40 GB model, SXM and PCIe.
        Chip(
            name="a100-40",
            kinds=("NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB"),
            flops=312e12,
            hbm_bytes=40 * GIB,
            hbm_bandwidth=1555e9,
            link_bandwidth=300e9,
        ),
        # NVIDIA H100 data sheet (2023), without sparsity; the link is the NVLink bridge between two cards.
        Chip(
            name="h100-pcie",
            kinds=("NVIDIA H100 PCIe",),
            flops=756e12,
            hbm_bytes=80 * GIB,
            hbm_bandwidth=2000e9,
            link_bandwidth=300e9,
        ),
        Chip(
            name="h100-nvl",
            kinds=("NVIDIA H100 NVL",),
            flops=835e12,
            hbm_bytes=94 * GIB,
            hbm_bandwidth=3900e9,
            link_bandwidth=300e9,
        ),
        Chip(
            name="h100",
            kinds=("NVIDIA H100",),
            flops=989e12,
            hbm_bytes=80 * GIB,
            hbm_bandwidth=3350e9,
            link_bandwidth=450e9,
        ),
        Chip(
            name="h200",
            kinds=("NVIDIA H200",),
            flops=989e12,
            hbm_bytes=141 * GIB,
            hbm_bandwidth=4800e9,
            link_bandwidth=450e9,
        ),
        Chip(
            name="b200",
            kinds=("NVIDIA B200",),
            flops=2250e12,
            hbm_bytes=180 * GIB,
            hbm_bandwidth=8000e9,
            link_bandwidth=900e9,
        ),
    )
}


def chip_of(device: Any) -> Chip | None:
    """Returns the specification of a device; None if it is unknown."""
    fitting = [
        (len(kind), chip) for chip in CHIPS.values() for kind in chip.kinds if device.device_kind.startswith(kind)
    ]
    return max(fitting, key=lambda found: found[0], default=(0, None))[1]
