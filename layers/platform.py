"""What a program is traced for: the platform it is compiled for, which need not be the one that compiles it, and
whether it is traced only to count its products or to check an experiment."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import TypeVar

import jax


def target_platform() -> str:
    """Returns "cpu", "gpu" or "tpu": that of the current mesh's devices, or of this machine's without a mesh."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def target_device_kind() -> str:
    """Returns what JAX calls these devices: "TPU v5 lite", "NVIDIA H100 80GB HBM3"."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.devices()[0].device_kind if device is None else device.device_kind


def has_several_devices() -> bool:
    """Returns whether the program is traced for a mesh of several devices."""
    mesh = jax.sharding.get_abstract_mesh()
    return not mesh.empty and mesh.size > 1


_COUNTED: contextvars.ContextVar[bool] = contextvars.ContextVar("counted", default=False)
_CHECKED: contextvars.ContextVar[str] = contextvars.ContextVar("checked", default="")
_Value = TypeVar("_Value")


@contextlib.contextmanager
def tracing_with(variable: contextvars.ContextVar[_Value], value: _Value) -> Iterator[None]:
    """Sets a context variable for programs that are traced inside the context."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def counting_products() -> contextlib.AbstractContextManager[None]:
    """Gives programs that are traced inside the context the products of the model, to count them.

    So the count does not depend on the platform: attention multiplies all pairs of queries and keys (Chowdhery et al.
    2022, appendix B), and experts without slots one row for each choice.
    """
    return tracing_with(_COUNTED, True)


def products_are_counted() -> bool:
    """Returns whether the program is traced only to count its products."""
    return _COUNTED.get()


def checking(platform: str) -> contextlib.AbstractContextManager[None]:
    """Marks programs that are traced inside the context as traced to check an experiment for a platform, or "any".

    They have no kernels: this machine need not have that platform.
    """
    return tracing_with(_CHECKED, platform)


def checked_platform() -> str:
    """Returns the platform that is checked; empty if the program is traced to run."""
    return _CHECKED.get()
