"""Mesh search: all mesh shapes and remat policies of an experiment, ranked by roofline step time."""

import itertools
from collections.abc import Iterator
from typing import Any

import jax

from layers.errors import UsageError, first_line
from layers.remat import REMAT_POLICIES
from registry.experiment import Experiment
from registry.overrides import override
from registry.tool import render
from runners.planner.cost import Plan, cost
from runners.planner.machine import Machine
from runners.planner.programs.compilation import Step
from runners.planner.summary import ESTIMATE, rate
from runners.reports.results import Results, experiment_hash, make_folder
from runners.session import Session
from tasks.storage.files import Place

RESULTS = "layouts.jsonl"
COLUMNS = ("mesh", "remat", "fits", "memory", "step", "tokens/s", "MFU", "why not")


def rank_meshes(experiment: Experiment, folder: Place, machine: Machine, step: Step = "train") -> int:
    """Plans every mesh shape and remat policy on the machine's devices; prints those that fit first, by step time.

    Each result is appended to layouts.jsonl at once: the same command in the same folder resumes the sweep.

    Raises:
      UsageError: neither a chip nor a topology is given.
    """
    if machine.chip is None:
        raise UsageError("--sweep ranks by step time. Name a chip with --chip=v3, or a machine with --topology=v3:8x8.")
    make_folder(folder)
    devices = machine.devices(experiment)
    results, common, ranked, out = Results(folder / RESULTS), _key(experiment, machine, step), [], render.console()
    cases = list(itertools.product(_shapes(len(devices), len(experiment.MESH_AXES)), REMAT_POLICIES))
    for number, (shape, remat) in enumerate(cases, 1):
        key = {**common, "shape": list(shape), "remat": remat}
        result = results.find(key) or results.add(key, _try(experiment, devices, shape, remat, machine, step))
        out.print(f"{number}/{len(cases)}  {_line(result)}")
        ranked.append(result)
    ranked.sort(key=_rank)
    numbers = ("memory", "step", "tokens/s", "MFU")
    out.print(render.table(COLUMNS, map(_cells, ranked), right=numbers, flexible={"why not": 30}))
    if any(result.get("roofline_is_estimate") for result in ranked):
        out.print(ESTIMATE)
    print(f"Written: {results.file}")
    return 0 if ranked[0].get("fits") else 1


def _shapes(devices: int, axes: int) -> Iterator[tuple[int, ...]]:
    """Yields all factorizations of the number of devices into `axes` axis sizes."""
    if axes == 1:
        yield (devices,)
        return
    for size in (size for size in range(1, devices + 1) if devices % size == 0):
        yield from ((size, *rest) for rest in _shapes(devices // size, axes - 1))


def _try(
    experiment: Experiment, devices: list[Any], shape: tuple[int, ...], remat: str, machine: Machine, step: Step
) -> Plan:
    """Returns the plan of one case, or why it failed."""
    sets = [f"DEVICE_MESH_SHAPE={','.join(map(str, shape))}", f"REMAT={remat}"]
    try:
        session = Session(override(type(experiment), sets)(), devices)
        result = cost(session, machine, step)
    except (UsageError, NotImplementedError, jax.errors.JaxRuntimeError) as error:
        return {"fits": False, "reason": first_line(error, 1000)}
    if "compiler" in result:
        result["reason"] = result["compiler"]["message"]
    return result


def _key(experiment: Experiment, machine: Machine, step: Step) -> dict[str, Any]:
    """Key of a stored result of this sweep; results with another key are ignored."""
    chip = machine.chip if machine.topology is None else None  # a topology implies its chip
    return {
        "key": experiment_hash(experiment),
        "order": [experiment.DEVICE_ORDER, *experiment.MESH_AXES, *(experiment.DCN_MESH_SHAPE or ())],
        "jax": jax.__version__,
        "machine": [
            machine.topology,
            chip.name if chip else None,
            machine.virtual_devices,
            machine.memory_fraction,
        ],
        "of_step": step,
        "bounds": ["compute", "memory", "links", "network"],  # of the step time
    }


def _rank(result: dict[str, Any]) -> tuple[bool, float, float]:
    """Sort key: meshes that fit first, then by step time, then by the sum of all roofline times."""
    seconds = result.get("roofline", {})
    return not result.get("fits"), result.get("roofline_step_seconds", float("inf")), sum(seconds.values())


def _cells(result: dict[str, Any]) -> tuple[str, ...]:
    shape = "x".join(map(str, result["shape"]))
    peak = result.get("memory_bytes_per_device", {}).get("peak")
    memory = render.size(peak) if peak is not None else ""
    if "roofline_step_seconds" not in result:
        return shape, result["remat"], "no", memory, "", "", "", result.get("reason", "")
    about = "~" if result["roofline_is_estimate"] else ""
    speed = f"{about}{result['roofline_step_seconds']:.3g} s", rate(result["roofline_tokens_per_second"])
    fits = "yes" if result["fits"] else "no"
    return shape, result["remat"], fits, memory, *speed, render.percent(result["roofline_mfu"]), ""


def _line(result: dict[str, Any]) -> str:
    return "  ".join(cell for cell in _cells(result) if cell)
