"""Which devices JAX uses: virtual CPU devices, for meshes with more devices than the machine has; no absent GPUs."""

import os
from pathlib import Path

NVIDIA_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/nvhost-ctrl")  # files of the driver: Linux, WSL, Jetson


def skip_absent_gpus() -> None:
    """Keeps JAX's CUDA plugin, which the GPU compiler is part of, quiet on machines without an NVIDIA driver.

    Without this it prints a traceback, because it finds no cuDNN. Call it before JAX initializes devices.
    """
    if not any(Path(file).exists() for file in NVIDIA_DRIVERS):
        os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")


def use_threads_for(devices: int) -> None:
    """Gives XLA's CPU client two threads for each device; call it before JAX initializes devices.

    XLA has one for each core or device, whichever are more. A thread that is busy with something else, such as copying
    a batch, then leaves too few for a collective that all devices must join, and XLA ends the process after 40 seconds.
    """
    os.environ.setdefault("NPROC", str(max(os.cpu_count() or 1, 2 * devices)))


def make_virtual_devices(count: int) -> None:
    """Makes JAX use `count` virtual CPU devices and no accelerator; call it before JAX initializes devices."""
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={count}".strip()
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax

    jax.config.update("jax_platforms", "cpu")
