"""What all tests share: eight virtual devices, a compilation cache, quick command lines."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CACHE = ROOT / ".pytest_cache" / "jax"
EIGHT_DEVICES = "--xla_force_host_platform_device_count=8"

# Before jax is imported: its flags are read once.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {EIGHT_DEVICES}".strip()
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(CACHE)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.5"


def pytest_configure(config):
    """Makes JAX find its devices before a test can ask for others (a plan on virtual devices does)."""
    import jax

    assert len(jax.devices()) == 8


@pytest.fixture
def command(tmp_path):
    """Runs `python -m MODULE ...` in a folder of its own; returns the finished process, output as text."""

    def run(module: str, *arguments: str, devices: int = 1, timeout: int = 600, **environment: str):
        flags = f"--xla_force_host_platform_device_count={devices}"
        env = {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": f"{tmp_path}:{ROOT}", **environment}
        return subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run
