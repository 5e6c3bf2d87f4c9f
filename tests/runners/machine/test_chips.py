"""Accelerators are known by the name that their driver reports."""

from types import SimpleNamespace

import pytest

from runners.machine.chips import CHIPS, chip_of


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100-40"),
        ("NVIDIA A100-PCIE-40GB", "a100-40"),
        ("NVIDIA A100-SXM4-80GB", "a100-80"),
        ("NVIDIA A100 80GB PCIe", "a100-80"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("TPU v5 lite", "v5e"),
        ("TPU v5", "v5p"),
        ("cpu", None),
    ],
)
def test_a_device_is_the_chip_of_its_longest_kind(kind, name):
    assert chip_of(SimpleNamespace(device_kind=kind)) == CHIPS.get(name)
