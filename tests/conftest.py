"""What all tests share: eight virtual devices, a compilation cache, quick command lines."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest

from runners.machine.virtual_devices import use_threads_for

pytest_plugins = ["tests.support.plugins.shapes", "tests.support.plugins.commands", "tests.support.plugins.progress"]
ROOT = Path(__file__).parent.parent
CACHE = ROOT / ".pytest_cache" / "jax"
# Tests compile much and compute little: one LLVM module for each program, emitted directly, not optimized (0.3 s of CPU
# for a small train step, where XLA's defaults take 4.7 s).
QUICK_COMPILE = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)


def xla_flags(devices: int) -> str:
    """XLA_FLAGS of a process with so many virtual devices."""
    return f"--xla_force_host_platform_device_count={devices} {QUICK_COMPILE}"


# Before jax is imported: its flags are read once.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {xla_flags(8)}".strip()
use_threads_for(8)
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(CACHE)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"


# The same examples in every run: their programs are in the compilation cache, and a failure repeats.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")


def pytest_configure(config):
    """Makes JAX find its devices before a test can ask for others (a plan on virtual devices does)."""
    import jax

    assert len(jax.devices()) == 8
    gc.freeze()  # the modules of libraries
    gc.set_threshold(20_000, 20, 20)  # tracing makes many objects, and few cycles


@pytest.fixture
def command(tmp_path):
    """Runs `python -m MODULE ...` in a folder of its own; returns the finished process, output as text."""

    def run(module: str, *arguments: str, devices: int = 1, timeout: int = 600, **environment: str):
        env = {**os.environ, "XLA_FLAGS": xla_flags(devices), "PYTHONPATH": f"{tmp_path}:{ROOT}", **environment}
        return subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run


@pytest.fixture(autouse=True)
def environment_as_before():
    """Commands called in this process set variables, which programs of later tests must not inherit.

    Only variables that differ are set: a thread of TensorFlow that reads the environment at that moment would crash.
    """
    os.environ.pop("COLUMNS", None)  # test runners set it; piped tables have their own width
    before = dict(os.environ)
    yield
    for name in [name for name in os.environ if name not in before]:
        del os.environ[name]
    for name, value in before.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


@pytest.fixture(autouse=True, scope="module")
def forget_programs():
    """After each file, releases its compiled programs: two processes of tests share the machine's memory."""
    yield
    import jax

    jax.clear_caches()
    gc.collect()
