"""Snapshots: experiments as plain data (knobs, config, weights, totals), for golden files, run folders and diffs."""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import fiddle as fdl
import jax
import numpy as np
from fiddle.experimental import serialization

from layers.errors import UsageError, first_line
from layers.specs import Specs, show_spec
from registry.build import build, config_of, from_json
from registry.config_paths import field_text, is_row, walk
from registry.experiment import Experiment, cls_key, owner
from registry.overrides import METHODS
from registry.records.phases import phase_records
from registry.records.record import Snapshot
from registry.user_code import building
from registry.values import show
from tasks.weight_table import WeightRow, WeightTable, shards
from tasks.zero import placed_table


def snapshot(experiment: Experiment, mesh: Mapping[str, int] | None = None) -> Snapshot:
    """Returns the resolved experiment as plain data; `mesh` for the available devices, by default as declared."""
    cls = type(experiment)
    knobs = {name: {"value": show(value), "owner": owner(cls, name)} for name, value in cls.knobs().items()}
    config = flat_config(experiment)
    phases = phase_records(experiment, config, [flat_config(phase) for phase in experiment.phases[1:]])
    return {
        "experiment": cls_key(cls),
        "smoke": experiment.smoke,
        "overrides": list(experiment.overrides),
        "knobs": knobs,
        "config": config,
        **({"phases": phases} if phases else {}),
        **{key: value for key, value in weight_summary(experiment, mesh).items() if key != "experiment"},
    }


def flat_config(experiment: Experiment) -> dict[str, str]:
    """Returns every field of the configs of Task(), Train() and Test(), by path."""
    return _flat_configs({root: config_of(experiment, root) for root in METHODS})


def _flat_configs(configs: Mapping[str, fdl.Config]) -> dict[str, str]:
    return {path: value for root, config in configs.items() for path, value in flat(config, root)}


def flat(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yields every field of a config by path, defaults included; a config itself is represented by the class that it
    builds, and configs in a tuple by their numbers. Placements of weights are omitted: the weight table has them.
    """
    for at, field in walk(value, path):
        if not (isinstance(field, dict | Specs) or is_row(field) or at.rpartition(".")[0].endswith(".specs")):
            yield at, field_text(field)


def weight_summary(experiment: Experiment, mesh: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Returns the weight table and its totals, in the form of `registry weights --json`."""
    mesh = experiment.mesh_shape() if mesh is None else mesh
    with building(type(experiment)):
        return _weight_summary(cls_key(type(experiment)), *placed_task(experiment, mesh), mesh)


def placed_task(experiment: Experiment, mesh: Mapping[str, int]) -> tuple[Any, WeightTable]:
    """Returns an experiment's task and its weight table on a mesh.

    Raises:
      UsageError: the mesh does not divide a weight.
    """
    with building(type(experiment)):
        return _placed_task(config_of(experiment, "task"), mesh)


def _placed_task(config: fdl.Config, mesh: Mapping[str, int]) -> tuple[Any, WeightTable]:
    task = build(config, "task")
    table = placed_table(task, mesh)
    table.check(mesh)
    return task, table


def totals(task: Any, table: WeightTable, mesh: Mapping[str, int]) -> dict[str, int]:
    """Returns the sums over a task's weight table: the number of weights, and bytes of weights, gradients and slots."""
    return _totals(task, table, mesh, _slot_bytes(task, table, mesh))


def _totals(task: Any, table: WeightTable, mesh: Mapping[str, int], slots: Mapping[str, int]) -> dict[str, int]:
    return {
        "parameters": sum(row.size for row in table),
        "bytes": sum(row.bytes for row in table),
        "bytes_per_device": sum(row.bytes_per_device(mesh) for row in table),
        "gradient_bytes_per_device": sum(_gradient_bytes(task, row, mesh) for row in table if row.trained),
        "optimizer_bytes_per_device": sum(slots.values()),
    }


def _weight_summary(name: str, task: Any, table: WeightTable, mesh: Mapping[str, int]) -> dict[str, Any]:
    slots = _slot_bytes(task, table, mesh)
    rows = [
        {
            "path": row.path,
            "shape": list(row.shape),
            "dtype": row.dtype,
            "spec": show_spec(row.spec),
            "slot_spec": show_spec(row.slot_spec),
            "role": row.role,
            "method": row.method,
            "init": row.init,
            "stddev": row.stddev,
            "fan_in": row.fan_in,
            "rate": row.rate,
            "decay": row.decay,
            "bytes": row.bytes,
            "bytes_per_device": row.bytes_per_device(mesh),
            "slot_bytes_per_device": slots.get(row.path, 0),
        }
        for row in table
    ]
    return {"experiment": name, "mesh": dict(mesh), "weights": rows, "totals": _totals(task, table, mesh, slots)}


def _gradient_bytes(task: Any, row: WeightRow, mesh: Mapping[str, int]) -> int:
    kept = (
        task.gradient_dtype if task.gradient_accumulation == 1 else "float32"
    )  # float32, the dtype of sums over micro-batches
    return math.prod(row.shape) * np.dtype(kept).itemsize // shards(row.gradient_spec, mesh)


def _slot_bytes(task: Any, table: WeightTable, mesh: Mapping[str, int]) -> dict[str, int]:
    """Returns the bytes per device of the optimizer's slots of each weight, by its path."""
    state = jax.eval_shape(task.optimizer.build(table).init, table.trained(table.abstract["params"]))
    found: dict[str, int] = {}
    for row, leaf, spec in task.optimizer.slots(table, state):
        if row is not None:
            size = math.prod(leaf.shape) * leaf.dtype.itemsize // shards(spec, mesh)
            found[row.path] = found.get(row.path, 0) + size
    return found


def stored_configs(stored: Snapshot) -> dict[str, fdl.Config]:
    """Returns the recorded configs of Task(), Train() and Test() of a run folder, under "task", "train" and "test".

    Raises:
      UsageError: they are missing, or refer to classes that no longer exist.
    """
    configs = stored.get("fiddle", {})
    if missing := [root for root in METHODS if root not in configs]:
        raise UsageError(f"The record of {stored['experiment']} has no configs (no '{missing[0]}').")
    try:
        found = {root: from_json(json.dumps(configs[root])) for root in METHODS}
        if wrong := [root for root, config in found.items() if not isinstance(config, fdl.Config)]:
            raise TypeError(f"that of '{wrong[0]}' is not a config")
        return found
    except serialization.PyrefPolicyError as error:
        raise UsageError(
            f"The configs that {stored['experiment']} was run with name {error.module}.{error.symbol}, which a record "
            f"may not call. If it is in a package of yours, import the package (--import=MODULE)."
        ) from error
    except Exception as error:  # a damaged record makes Fiddle raise arbitrary exceptions
        raise UsageError(
            f"The configs that {stored['experiment']} was run with cannot be read: {first_line(error)}."
        ) from error


def with_todays_fields(stored: Snapshot) -> Snapshot:
    """Returns a run's record with the config fields of the current code: fields that it lacks have their defaults.

    A record whose configs cannot be read is returned unchanged.
    """
    try:
        config = _flat_configs(stored_configs(stored))
    except UsageError:
        return stored
    return {**stored, "config": {path: _todays_field(config, path) for path in config}}


def _todays_field(config: Mapping[str, str], path: str) -> str:
    """Returns a field's value; None for one that an earlier version stated although nothing reads it."""
    owner, _, name = path.rpartition(".")
    unread = {
        "score_length": config.get(f"{owner}.score_function") == "'softmax'",
        "table_rows": config[path] == config.get(f"{owner}.vocab_size"),
    }
    return "None" if unread.get(name) else config[path]


def rebuilt(stored: Snapshot) -> Snapshot:
    """Returns a run's experiment, built by the current code from the recorded configs; its class may no longer exist.

    Raises:
      UsageError: they cannot be read or built.
    """
    configs = stored_configs(stored)
    decided = {key: stored[key] for key in ("experiment", "smoke", "overrides", "knobs", "phases") if key in stored}
    weights = _weight_summary(stored["experiment"], *_placed_task(configs["task"], stored["mesh"]), stored["mesh"])
    return {**decided, "config": _flat_configs(configs), **weights}
