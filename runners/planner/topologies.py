"""Topologies: compile targets without attached devices, TPU slices and hosts with GPUs."""

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

from layers.errors import UsageError, first_line, missing_package
from registry.meshes import parse_hardware
from runners.machine.chips import CHIPS, Chip, Gpu

GPU_COMPILERS = ("jax_cuda13_plugin", "jax_cuda12_plugin")  # modules; the extra gpu-plan installs the first


def parse_topology(name: str) -> tuple[Chip, tuple[int, ...], int]:
    """Returns the chip, the grid and the number of slices of a name (registry.meshes.parse_hardware).

    The grid is that of a slice's chips, or (hosts, GPUs of a host) in one slice.

    Raises:
      UsageError: the name is malformed, or the chip is unknown.
    """
    hardware = parse_hardware(name, f"--topology={name}")
    return CHIPS[hardware.chip], hardware.grid, hardware.slices


def topology_devices(name: str) -> list[Any]:
    """Returns the devices of a machine that is not attached: programs can be compiled for them, not run.

    A GPU's `process_index` is its host. JAX must not have searched for devices before, except on the CPU
    (runners.machine.virtual_devices).

    Raises:
      UsageError: the compiler is not installed, or does not support the topology.
    """
    chip, grid, slices = parse_topology(name)
    return _tpus(chip, grid, slices) if chip.gpu is None else _gpus(chip, chip.gpu, grid)


def _tpus(chip: Chip, grid: tuple[int, ...], slices: int) -> list[Any]:
    if not has_tpu_compiler():
        raise missing_package("--topology", "libtpu (the TPU compiler; no TPU is needed)", "tpu")
    # libtpu queries the TPU machine it runs on for these; there is none here.
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    os.environ["TPU_WORKER_HOSTNAMES"] = "localhost"
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", f"{chip.name}-8")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    from jax.experimental import topologies

    options: dict[str, Any] = {"chip_config_name": "megacore"} if chip.name == "v4" else {}
    options |= {"num_slices": slices} if slices > 1 else {}
    shape = "x".join(map(str, grid))
    try:
        name = f"{chip.name}:{shape}"
        return topologies.get_topology_desc(platform="tpu", topology_name=name, **options).devices
    except Exception as error:
        raise UsageError(
            f"The TPU compiler does not support a {chip.name} slice of {shape} chips: {first_line(error)}."
        ) from error


def _gpus(chip: Chip, gpu: Gpu, grid: tuple[int, ...]) -> list[Any]:
    if not has_gpu_compiler():
        subject = f"--topology={chip.name}:..."
        raise missing_package(subject, "jax-cuda13-plugin (the GPU compiler; no GPU is needed)", "gpu-plan")
    from jax.experimental import topologies

    hosts, gpus = grid
    try:
        # One partition; with platform "gpu" JAX would look for a GPU that is attached.
        shape = f"1x{hosts}x{gpus}"
        return topologies.get_topology_desc(
            platform="cuda", target_config=target_config(chip, gpu), topology=shape
        ).devices
    except Exception as error:
        raise UsageError(
            f"The GPU compiler does not support {hosts} x {gpus} GPUs of type {chip.name}: {first_line(error)}."
        ) from error


def has_tpu_compiler() -> bool:
    """Returns whether the TPU compiler is installed."""
    return importlib.util.find_spec("libtpu") is not None


def has_gpu_compiler() -> bool:
    """Returns whether the GPU compiler is installed."""
    return any(importlib.util.find_spec(module) for module in GPU_COMPILERS)


def target_config(chip: Chip, gpu: Gpu) -> str:
    """Returns XLA's description of a GPU, its GpuTargetConfigProto as text.

    The compiler reads all of these: without the sizes of a warp or of the grid it ends the process, SMs, lanes and
    clock change the program, and the memory's size is what scheduling and rematerialization aim at.
    """
    device = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "shared_memory_per_block": 48 * 2**10,
        "shared_memory_per_core": gpu.shared_memory_per_core,
        "threads_per_core_limit": 2048,
        "core_count": gpu.core_count,
        "fpus_per_core": gpu.fpus_per_core,
        "block_dim_limit_x": 2**31 - 1,
        "block_dim_limit_y": 2**16 - 1,
        "block_dim_limit_z": 2**16 - 1,
        "memory_bandwidth": int(chip.hbm_bandwidth),
        "l2_cache_size": gpu.l2_cache_size,
        "clock_rate_ghz": gpu.clock_rate_ghz,
        "device_memory_size": chip.hbm_bytes,
        "shared_memory_per_block_optin": gpu.shared_memory_per_block_optin,
        "registers_per_core_limit": 2**16,
        "registers_per_block_limit": 2**16,
    }
    fields = " ".join(f"{name}: {value}" for name, value in device.items())
    major, minor = gpu.cudnn
    return (
        f"gpu_device_info {{ {fields} cuda_compute_capability {{ major: {gpu.compute_capability} }} }} "
        f'platform_name: "CUDA" dnn_version_info {{ major: {major} minor: {minor} }} '
        f'runtime_version {{ major: {gpu.runtime} }} device_description_str: "{chip.kinds[0]}"'
    )


@contextlib.contextmanager
def planned_cudnn(chip: Chip | None) -> Iterator[None]:
    """Lets JAX trace cuDNN attention for a GPU that is not attached, inside the context.

    JAX asks for the version of the cuDNN that is installed here, and for the GPU of this machine; the answers are those
    of the chip.
    """
    if chip is None or chip.gpu is None:
        yield
        return
    (major, minor), capability = chip.gpu.cudnn, (chip.gpu.compute_capability, 0)
    number = lambda text: tuple(map(int, text.split(".")))
    with mock.patch.multiple(
        "jax._src.cudnn.fused_attention_stablehlo",
        check_cudnn_version=lambda: major * 10_000 + minor * 100,
        check_compute_capability=lambda least: capability >= number(least),
        is_cuda_compute_capability_equal=lambda other: capability == number(other),
    ):
        yield
