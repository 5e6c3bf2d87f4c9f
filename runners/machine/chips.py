"""Accelerator specifications: FLOP/s, memory and bandwidths, from the manufacturers' data sheets."""

import dataclasses
from typing import Any

GIB = 2**30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gpu:
    """What the GPU compiler asks of an NVIDIA GPU: properties that change the program and its memory."""

    core_count: int  # streaming multiprocessors (SMs)
    fpus_per_core: int  # float32 lanes of an SM
    clock_rate_ghz: float  # highest clock
    l2_cache_size: int  # bytes
    compute_capability: int  # major; the minor one is 0 in all of CHIPS
    shared_memory_per_core: int  # bytes of an SM
    shared_memory_per_block_optin: int  # bytes, the most of a block
    runtime: int = 13  # major version of CUDA
    cudnn: tuple[int, int] = (9, 12)  # major and minor version, the least that JAX's extra `cuda13` installs


KIB, MIB = 2**10, 2**20
# Shared memory by compute capability: CUDA C++ programming guide, table of technical specifications.
AMPERE = Gpu(
    core_count=108,
    fpus_per_core=64,
    clock_rate_ghz=1.41,
    l2_cache_size=40 * MIB,
    compute_capability=8,
    shared_memory_per_core=164 * KIB,
    shared_memory_per_block_optin=163 * KIB,
)
HOPPER = Gpu(
    core_count=132,
    fpus_per_core=128,
    clock_rate_ghz=1.98,
    l2_cache_size=50 * MIB,
    compute_capability=9,
    shared_memory_per_core=228 * KIB,
    shared_memory_per_block_optin=227 * KIB,
)
# NVIDIA states no number of SMs, clock or cache size of B200; these are what the CUDA driver reports.
BLACKWELL = dataclasses.replace(
    HOPPER, core_count=148, clock_rate_ghz=1.965, l2_cache_size=132_644_864, compute_capability=10
)
PREALLOCATED = 0.75  # share of a GPU's memory that JAX takes at its start (XLA_PYTHON_CLIENT_MEM_FRACTION)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """Specification of one JAX device: a core of TPU v2 and v3, a chip of all others."""

    name: str  # the name in `--chip` and `--topology`
    kinds: tuple[str, ...]  # prefixes of jax.Device.device_kind; the longest match decides
    flops: float  # bfloat16 matrix-product operations per second
    hbm_bytes: int  # memory size in bytes
    hbm_bandwidth: float  # bytes per second
    link_bandwidth: float  # bytes per second that a device sends along one mesh axis, sum of both directions of a ring
    network_bandwidth: float | None = None  # bytes per second that a device sends across slices or hosts; None: unknown
    host_bandwidth: float | None = None  # bytes per second to or from its host's memory; None: unknown
    gpu: Gpu | None = None  # of NVIDIA GPUs

    def capacity(self, fraction: float | None = None) -> int:
        """Returns the bytes that a process can use: a share of a GPU's memory, by default JAX's, or all of a TPU's.

        Outside that share are the CUDA context and the workspaces of NCCL and other libraries.
        """
        return int(self.hbm_bytes * (fraction or (PREALLOCATED if self.gpu else 1)))


# Link bandwidths of TPUs: both directions of one torus axis, shared by the two cores of a v2 or v3 chip. GPUs:
# NVLink, one direction. Network bandwidths: a device's share of its host's network cards. Those of v5e and v6e from
# "TPU v6e", cloud.google.com/tpu/docs/v6e: 2 cards of 100 Gb/s and 4 of 200 Gb/s per host of 8 chips; no such table
# has other TPUs. Host bandwidths: one direction; those of the data sheets, named below, are the sum of both. Memory
# of GPUs: what the CUDA driver reports of a card (an "80 GB" H100 has 79.1 GiB); for h100-nvl and gh200 the figure of
# the data sheet.
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
            network_bandwidth=3.125e9,
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
            network_bandwidth=12.5e9,
        ),
        # A100: NVIDIA A100 data sheet (2021), A100 white paper (2020, table 4: SMs, lanes, clock, L2). Network: NVIDIA
        # DGX A100 data sheet (2021), 8 single-port ConnectX-6 of 200 Gb/s for 8 GPUs.
        Chip(
            name="a100-80",
            kinds=("NVIDIA A100",),
            flops=312e12,
            hbm_bytes=85_100_068_864,
            hbm_bandwidth=2039e9,
            link_bandwidth=300e9,
            network_bandwidth=25e9,
            host_bandwidth=32e9,
            gpu=AMPERE,
        ),
        Chip(
            name="a100-40",
            kinds=("NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB"),
            flops=312e12,
            hbm_bytes=42_331_013_120,
            hbm_bandwidth=1555e9,
            link_bandwidth=300e9,
            network_bandwidth=25e9,
            host_bandwidth=32e9,
            gpu=AMPERE,
        ),
        # H100: NVIDIA H100 data sheet (2023), without sparsity; H100 white paper (2022, table 3). The link of PCIe
        # cards is the NVLink bridge between two of them. Network: NVIDIA DGX H100 data sheet (2023), 8 single-port
        # ConnectX-7 of 400 Gb/s for 8 GPUs; servers with the other two cards vary.
        Chip(
            name="h100-pcie",
            kinds=("NVIDIA H100 PCIe",),
            flops=756e12,
            hbm_bytes=84_942_979_072,
            hbm_bandwidth=2000e9,
            link_bandwidth=300e9,
            host_bandwidth=64e9,
            gpu=dataclasses.replace(HOPPER, core_count=114, clock_rate_ghz=1.755),
        ),
        Chip(
            name="h100-nvl",
            kinds=("NVIDIA H100 NVL",),
            flops=835e12,
            hbm_bytes=94_000_000_000,
            hbm_bandwidth=3900e9,
            link_bandwidth=300e9,
            host_bandwidth=64e9,
            gpu=dataclasses.replace(HOPPER, clock_rate_ghz=1.785),
        ),
        Chip(
            name="h100",
            kinds=("NVIDIA H100",),
            flops=989e12,
            hbm_bytes=84_942_979_072,
            hbm_bandwidth=3350e9,
            link_bandwidth=450e9,
            network_bandwidth=50e9,
            host_bandwidth=64e9,
            gpu=HOPPER,
        ),
        # NVIDIA H200 data sheet (2024); network as DGX H100 (NVIDIA DGX H200 data sheet, 2024).
        Chip(
            name="h200",
            kinds=("NVIDIA H200",),
            flops=989e12,
            hbm_bytes=151_397_597_184,
            hbm_bandwidth=4800e9,
            link_bandwidth=450e9,
            network_bandwidth=50e9,
            host_bandwidth=64e9,
            gpu=HOPPER,
        ),
        # NVIDIA GH200 data sheet (2024), the model of 96 GB; the link is NVLink between GPUs; that to the CPU is
        # NVLink-C2C.
        Chip(
            name="gh200",
            kinds=("NVIDIA GH200",),
            flops=989e12,
            hbm_bytes=96_000_000_000,
            hbm_bandwidth=4000e9,
            link_bandwidth=450e9,
            host_bandwidth=450e9,
            gpu=HOPPER,
        ),
        # NVIDIA HGX B200 data sheet (2024): 2.25 PFLOP/s of bfloat16 without sparsity, 8 TB/s. Network:
        # NVIDIA DGX B200 user guide, 8 single-port ConnectX-7 of 400 Gb/s for 8 GPUs; its processors have PCIe Gen5.
        Chip(
            name="b200",
            kinds=("NVIDIA B200",),
            flops=2250e12,
            hbm_bytes=191_514_411_008,
            hbm_bandwidth=8000e9,
            link_bandwidth=900e9,
            network_bandwidth=50e9,
            host_bandwidth=64e9,
            gpu=BLACKWELL,
        ),
    )
}


def chip_of(device: Any) -> Chip | None:
    """Returns the specification of a device; None if it is unknown."""
    fitting = [
        (len(kind), chip) for chip in CHIPS.values() for kind in chip.kinds if device.device_kind.startswith(kind)
    ]
    return max(fitting, key=lambda found: found[0], default=(0, None))[1]
