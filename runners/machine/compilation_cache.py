"""The compilation cache: compiled programs are stored in the user's cache folder, and read by the next command."""

import hashlib
import os
import platform
from pathlib import Path
from typing import Any

import jax

from tasks.storage.files import cache_folder

FOLDER = "compiled"
SETTINGS = {  # unless the environment sets them
    "jax_compilation_cache_max_size": 2 * 2**30,  # bytes; programs not read for the longest time are deleted
    "jax_persistent_cache_min_compile_time_secs": 0.2,  # programs that compile faster are not stored
}
CPU = Path("/proc/cpuinfo")


def use_compilation_cache() -> None:
    """Makes JAX store compiled programs in the cache folder, unless JAX_COMPILATION_CACHE_DIR names another one.

    JAX_ENABLE_COMPILATION_CACHE=false disables it. Programs for several CPU devices are not stored: read from a cache
    (jaxlib 0.10.2), they may run independent collectives in another order on each device, and wait for each other
    forever.

    Call it after this process has joined the others: it initializes JAX's devices.
    """
    config: Any = jax.config
    if config.jax_compilation_cache_dir is not None or (jax.default_backend() == "cpu" and jax.device_count() > 1):
        return
    folder = cache_folder()
    if folder.stat().st_uid != os.getuid():  # programs of other users are not run
        return
    config.update("jax_compilation_cache_dir", str(folder / FOLDER / processor()))
    for name, value in SETTINGS.items():
        if name.upper() not in os.environ:
            config.update(name, value)


def processor() -> str:
    """Returns a name of this kind of processor: programs for a CPU use its instructions."""
    text = CPU.read_text() if CPU.exists() else platform.processor()
    features = next((line for line in text.splitlines() if line.startswith(("flags", "Features"))), text)
    return f"{platform.machine()}-{hashlib.sha256(features.encode()).hexdigest()[:12]}"
