"""Compilation of programs for several devices in tests."""

import contextlib
from collections.abc import Iterator

import jax
from jax.experimental.compilation_cache import compilation_cache


@contextlib.contextmanager
def compiled_anew() -> Iterator[None]:
    """Inside, programs are not read from the compilation cache.

    Programs for several CPU devices that are read from it (jaxlib 0.10.2) may run independent collectives in another
    order on each device, and then wait for each other until XLA ends the process.
    """
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
        compilation_cache.reset_cache()
