"""TPU topologies: compile targets without attached devices."""

import importlib.util
import os
import re
from typing import Any

from layers.errors import UsageError, did_you_mean, first_line, missing_package
from runners.chips import CHIPS, Chip

TPUS = [name for name in CHIPS if name.startswith("v")]


def parse_topology(name: str) -> tuple[Chip, tuple[int, ...]]:
    """Returns the chip and the grid of a name like `v3:8x8`.

    Raises:
      UsageError: the name is malformed, or the TPU is unknown.
    """
    match = re.fullmatch(r"(\w+):(\d+(?:x\d+)+)", name)
    if not match:
        raise UsageError(f"--topology must be a TPU and its grid of chips, like v3:8x8 or v4:4x4x4 (got {name}).")
    if match[1] not in TPUS:
        raise UsageError(f"Unknown TPU '{match[1]}' in --topology={name}. {did_you_mean(match[1], TPUS)}")
    return CHIPS[match[1]], tuple(map(int, match[2].split("x")))


def topology_devices(name: str) -> list[Any]:
    """Returns the devices of a TPU slice that is not attached: programs can be compiled for them, not run.

    Raises:
      UsageError: libtpu is not installed, or does not support the slice.
    """
    chip, grid = parse_topology(name)
    if importlib.util.find_spec("libtpu") is None:
        raise missing_package("--topology", "libtpu (the TPU compiler; no TPU is needed)", "tpu")
    # libtpu queries the TPU machine it runs on for these; there is none here.
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    os.environ["TPU_WORKER_HOSTNAMES"] = "localhost"
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", f"{chip.name}-8")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    from jax.experimental import topologies

    options = {"chip_config_name": "megacore"} if chip.name == "v4" else {}
    try:
        return topologies.get_topology_desc(platform="tpu", topology_name=name, **options).devices
    except Exception as error:
        shape = "x".join(map(str, grid))
        raise UsageError(
            f"The TPU compiler does not support a {chip.name} slice of {shape} chips: {first_line(error)}."
        ) from error
