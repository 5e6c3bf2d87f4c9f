"""Which devices JAX uses."""

import os

import pytest

from runners.machine import virtual_devices

VARIABLE = "JAX_SKIP_CUDA_CONSTRAINTS_CHECK"


@pytest.mark.parametrize(("is_there", "given", "then"), [(False, None, "1"), (True, None, None), (False, "0", "0")])
def test_absent_gpus_are_skipped(is_there, given, then, tmp_path, monkeypatch):
    driver = tmp_path / "nvidiactl"
    if is_there:
        driver.touch()
    monkeypatch.setattr(virtual_devices, "NVIDIA_DRIVERS", (str(driver),))
    monkeypatch.delenv(VARIABLE, raising=False)
    if given is not None:
        monkeypatch.setenv(VARIABLE, given)
    virtual_devices.skip_absent_gpus()
    assert os.environ.get(VARIABLE) == then
