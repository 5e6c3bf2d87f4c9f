"""The platform that a program is compiled for, which need not be the one that compiles it."""

import jax


def target_platform() -> str:
    """Returns "cpu", "gpu" or "tpu": that of the current mesh's devices, or of this machine's without a mesh."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform
