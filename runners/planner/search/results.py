"""The file of a search's results and the devices that it plans for."""

from typing import Any

from layers.errors import UsageError
from registry.experiment import Experiment
from runners.planner.machine import Machine
from runners.reports.results import Results, make_folder
from runners.session import on_devices
from tasks.storage.files import Place

RESULTS = "layouts.jsonl"


def open_results(
    flag: str, experiment: Experiment, folder: Place, machine: Machine
) -> tuple[Experiment, list[Any], Results]:
    """Returns the experiment on the machine's mesh, the devices to plan for, and the results of earlier searches.

    The folder is created.

    Raises:
      UsageError: no chip is known, or the folder cannot be created.
    """
    if machine.chip is None:
        raise UsageError(
            f"{flag} compares with a chip's memory and speed. Name a chip with --chip=v3, or a machine with "
            "--topology=v3:8x8."
        )
    if len(experiment.phases) > 1:
        print(f"{flag} plans the first phase. --mode=plan without it plans all of them.", flush=True)
    devices = machine.devices(experiment)
    make_folder(folder)
    placed = on_devices(machine.placed(experiment, len(devices)), devices)
    return placed, devices, Results(folder / RESULTS)
