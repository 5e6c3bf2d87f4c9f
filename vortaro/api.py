"""Functions of the Python API."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from layers.errors import VortaroError
from registry.checks import check as check_experiment
from registry.index import entries as all_entries
from registry.records import diff as differences
from registry.records.record import load as load_snapshot
from registry.resolve import resolve
from registry.values import show
from tasks.storage.files import place
from vortaro.run import Run
from vortaro.tables import Difference, Plan, Table
from vortaro.view import View

Named = str | View  # an experiment: its name, or what `get` returned


def entries() -> Table:
    """Returns the registered experiments: name, first line of the docstring, mesh."""
    found = all_entries().values()
    return Table([{"name": entry.key, "text": entry.doc, "mesh": entry.mesh} for entry in found])


def get(name: str, *, smoke: bool = False, imports: Sequence[str] = (), **knobs: Any) -> View:
    """Returns an experiment.

    Args:
      name: `family.Class`, or `their_module.Class`.
      smoke: use the small version of the experiment.
      imports: modules to import first.
      knobs: values of knobs.
    Raises:
      UsageError: an unknown experiment or knob, or an invalid value.
    """
    overrides = [f"{knob}={show(value)}" for knob, value in knobs.items()]
    return View(resolve(name, overrides, smoke=smoke, imports=imports))


def check(experiment: Named) -> None:
    """Validates specs, shapes and mesh of an experiment without devices.

    Raises:
      UsageError: the first error found, with its position.
    """
    check_experiment(_view(experiment).experiment)


def diff(a: Named, b: Named) -> Difference:
    """Returns the difference of two experiments; a name may also be a run folder. The result is falsy if they are
    equal."""
    return Difference(differences.diff(_snapshot(a), _snapshot(b)))


def plan(experiment: Named, *, chip: str | None = None, topology: str | None = None, step: str = "train") -> Plan:
    """Compiles a step for a machine that is not attached; returns memory, collectives and step time.

    It runs in a separate process, because it needs as many virtual devices as the mesh has.

    Args:
      experiment: the experiment.
      chip: the chip whose memory and speed are assumed, like "v4" or "h100".
      topology: a TPU slice like "v3:8x8", for the TPU compiler (extra `tpu`).
      step: "train", or "decode" for one token.
    Raises:
      VortaroError: the plan fails; the message is the planner's.
    """
    view = _view(experiment)
    with tempfile.TemporaryDirectory() as folder:
        flags = {"chip": chip, "topology": topology, "plan_step": step}
        command = [sys.executable, "-m", "runners.main", "--mode=plan", f"--exp={view.name}", f"--workdir={folder}"]
        command += [f"--{name}={value}" for name, value in flags.items() if value is not None]
        command += [f"--set={override}" for override in view.experiment.overrides]
        command += ["--smoke"] * view.experiment.smoke
        done = subprocess.run(command, capture_output=True, text=True)
        file = Path(folder) / "plan.json"
        if not file.exists():
            lines = done.stderr.strip().splitlines() or [f"The planner exited with {done.returncode}."]
            raise VortaroError(lines[-1].removeprefix("vortaro: "))
        return Plan(json.loads(file.read_text()), done.stdout)


def load(folder: str) -> Run:
    """Returns the run in a folder.

    Raises:
      UsageError: the folder is not a run folder.
    """
    return Run(folder)


def _view(experiment: Named) -> View:
    return get(experiment) if isinstance(experiment, str) else experiment


def _snapshot(experiment: Named) -> dict[str, Any]:
    if isinstance(experiment, str) and place(experiment).exists():
        return load_snapshot(place(experiment))
    return _view(experiment).snapshot
