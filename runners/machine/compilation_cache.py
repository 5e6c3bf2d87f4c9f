"""The compilation cache: compiled programs are stored in the user's cache folder, and read by the next command."""

import contextlib
import hashlib
import os
import platform
from pathlib import Path
from typing import Any

import filelock
import jax

from tasks.storage.files import cache_folder

FOLDER = "compiled"
SETTINGS = {  # unless the environment sets them
    "jax_compilation_cache_max_size": 2 * 2**30,  # bytes; programs not read for the longest time are deleted
    "jax_persistent_cache_min_compile_time_secs": 0.02,  # programs that compile faster are not stored
}
# Programs: with a limit of bytes, JAX lists all of them (40 microseconds each) for each one that it stores.
MOST, KEPT = 500, 400
LARGE = 1 << 18  # bytes of a program that takes long to compile
PROGRAM, READ_AT = "-cache", "-atime"  # endings of JAX's files of a program: itself, and when it was read
CPU = Path("/proc/cpuinfo")


def use_compilation_cache() -> None:
    """Makes JAX store compiled programs in the cache folder, unless JAX_COMPILATION_CACHE_DIR names another one.

    JAX_ENABLE_COMPILATION_CACHE=false disables it. By default there is none for

    * several CPU devices: programs that are read from a cache (jaxlib 0.10.2) may run independent collectives in
      another order on each device, and wait for each other forever;
    * several processes: JAX stores the programs of the first one only, and processes that compile share their
      autotuning with each other, so that all must read from a cache or none;
    * a folder that other users own or can write to, because programs in it are run.

    Call it after this process has joined the others: it initializes JAX's devices.
    """
    config: Any = jax.config
    if config.jax_compilation_cache_dir is not None or jax.process_count() > 1:
        return
    if jax.default_backend() == "cpu" and jax.device_count() > 1:
        return
    outer = cache_folder() / FOLDER
    folder = outer / processor()
    if not (_is_private(outer) and _is_private(folder)):
        return
    config.update("jax_compilation_cache_dir", str(folder))
    for name, value in SETTINGS.items():
        if name.upper() not in os.environ:
            config.update(name, value)
    if config.jax_enable_compilation_cache and config.jax_compilation_cache_max_size >= 0:
        with contextlib.suppress(OSError):
            _delete_oldest(folder)


def _delete_oldest(folder: Path) -> None:
    """Keeps KEPT programs if there are more than MOST: large ones, then those that were read last.

    Raises:
      OSError: files cannot be read or deleted, or another process stores programs all the time.
    """
    if sum(name.endswith(PROGRAM) for name in os.listdir(folder)) <= MOST:
        return
    with filelock.FileLock(folder / ".lockfile", timeout=1):  # JAX's
        files = [folder / name for name in os.listdir(folder) if name.endswith(PROGRAM)]
        read_at = lambda file: file.with_name(file.name.removesuffix(PROGRAM) + READ_AT)
        time_of = lambda file: int.from_bytes(read_at(file).read_bytes(), "little") if read_at(file).exists() else 0
        for file in sorted(files, key=lambda file: (file.stat().st_size >= LARGE, time_of(file)))[:-KEPT]:
            file.unlink()
            read_at(file).unlink(missing_ok=True)


def _is_private(folder: Path) -> bool:
    """Returns whether only this user can write to a folder, which is created if it does not exist."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.stat()
    except OSError:
        return False
    return found.st_uid == os.getuid() and not found.st_mode & 0o022


def processor() -> str:
    """Returns a name of this kind of processor: programs for a CPU use its instructions."""
    text = CPU.read_text() if CPU.exists() else platform.processor()
    features = next((line for line in text.splitlines() if line.startswith(("flags", "Features"))), text)
    return f"{platform.machine()}-{hashlib.sha256(features.encode()).hexdigest()[:12]}"
