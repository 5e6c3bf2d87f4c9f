"""Consistency checks: all processes of a run compare their configuration and data before they start."""

import argparse
import importlib.metadata
import os
import platform
from collections.abc import Mapping
from typing import Any

import jax

from registry.experiment import Experiment, cls_key
from registry.records.provenance import PACKAGES, digest, short_digest
from registry.records.snapshot import flat_config
from runners.flags import given_module_flags
from runners.processes.coordination import ProcessGroup


def require_same_run(experiment: Experiment, options: argparse.Namespace, processes: ProcessGroup) -> None:
    """Raises a UsageError if processes differ in what they run; called by all of them."""
    if not processes.several:
        return
    local = jax.local_devices()
    card = {
        "--mode": options.mode,
        "--exp": cls_key(type(experiment)),
        "SEED": str(experiment.SEED),
        "--set": " ".join(experiment.overrides) or "nothing",
        "--smoke": str(experiment.smoke).lower(),
        "--workdir": str(options.workdir),
        "devices": f"{len(local)} x {local[0].device_kind}",
        **{name: os.environ.get(name, "nothing") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")},
        "Python": platform.python_version(),
        **{package: importlib.metadata.version(package) for package in PACKAGES},
        "code": digest((*options.imports, type(experiment).__module__)),
        "config": short_digest(repr([sorted(flat_config(phase).items()) for phase in experiment.phases]).encode()),
        "flags": " ".join(_other_flags(options)) or "nothing",
    }
    processes.all_agree(card)


def require_same_data_everywhere(inputs: Mapping[str, Any], processes: ProcessGroup) -> None:
    """Raises a UsageError if processes see different data; called by all of them.

    Args:
      inputs: the inputs that are read, by config path.
      processes: the processes of the run.
    """
    if not processes.several:
        return
    processes.all_agree({f"data in {name}": str(source.fingerprint) for name, source in inputs.items()})


def _other_flags(options: argparse.Namespace) -> list[str]:
    """Returns the flags that affect the run, except those compared one by one and those that differ by process."""
    own = (
        "coordinator",
        "num_processes",
        "process_id",
        "join_timeout",
        "host_devices",
        "tensorboard",
        "wandb",
        "stream",
    )
    named = ("command", "began", "mode", "exp", "set", "smoke", "workdir")
    others = [f"--{name}={value}" for name, value in sorted(vars(options).items()) if name not in (*own, *named)]
    return [*others, *given_module_flags()]
