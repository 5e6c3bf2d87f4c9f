"""Virtual devices on this machine's CPU, for meshes that are larger than the machine."""

import os


def make_virtual_devices(count: int) -> None:
    """Makes JAX see so many CPU devices and no accelerator; to be called before JAX looks for devices."""
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={count}".strip()
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax

    jax.config.update("jax_platforms", "cpu")
