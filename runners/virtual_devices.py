"""Virtual CPU devices, for meshes with more devices than the machine has."""

import os


def make_virtual_devices(count: int) -> None:
    """Makes JAX use `count` virtual CPU devices and no accelerator; call it before JAX initializes devices."""
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={count}".strip()
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax

    jax.config.update("jax_platforms", "cpu")
