"""Every way to lay an experiment out on a machine, ranked by what the compiler says of it."""

import hashlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from layers.errors import UsageError
from layers.stack import REMAT_POLICIES
from registry import render
from registry.experiment import Experiment
from registry.overrides import override
from registry.snapshot import snapshot
from runners.plan import PlanOptions, chip_of, make_folder, planning_devices
from runners.predict import Plan, predict
from runners.session import Session

RESULTS = "sweep.jsonl"
COLUMNS = ("mesh", "remat", "fits", "memory", "step", "tokens/s", "MFU", "why not")


def sweep(experiment: Experiment, folder: Path, options: PlanOptions) -> int:
    """Plans every mesh shape and remat policy on the machine's devices; prints those that fit, fastest first.

    Each result is appended to sweep.jsonl as it comes: started again in the same folder, the sweep goes on.

    Raises:
      UsageError: no machine is named, so that nothing could be ranked.
    """
    chip = chip_of(options)
    if chip is None:
        raise UsageError("--sweep ranks by speed: name a machine with --topology=v3:8x8, or a chip with --chip=v3.")
    make_folder(folder)
    devices = planning_devices(experiment, options)
    file = folder / RESULTS
    done = {(tuple(r["shape"]), r["remat"]): r for r in _read(file, experiment, options)}
    cases = list(itertools.product(_shapes(len(devices), len(experiment.MESH_AXES)), REMAT_POLICIES))
    for number, (shape, remat) in enumerate(cases, 1):
        if (shape, remat) not in done:
            result = {
                **_key(experiment, options),
                "shape": shape,
                "remat": remat,
                **_try(experiment, devices, shape, remat, options),
            }
            done[shape, remat] = result
            with file.open("a") as stream:
                stream.write(json.dumps(result) + "\n")
        print(f"{number}/{len(cases)}  {_line(done[shape, remat])}", flush=True)
    ranked = sorted((done[case] for case in cases), key=_rank)
    render.console().print(render.table(COLUMNS, map(_cells, ranked), right=("memory", "step", "tokens/s", "MFU")))
    print(f"Written: {file}")
    return 0 if ranked[0].get("fits") else 1


def _shapes(devices: int, axes: int) -> Iterator[tuple[int, ...]]:
    """All ways to write the number of devices as a product of so many axis sizes."""
    if axes == 1:
        yield (devices,)
        return
    for size in (size for size in range(1, devices + 1) if devices % size == 0):
        yield from ((size, *rest) for rest in _shapes(devices // size, axes - 1))


def _try(experiment: Experiment, devices: list[Any], shape: tuple[int, ...], remat: str, options: PlanOptions) -> Plan:
    """The plan of one case, or the reason why there is none."""
    sets = [f"DEVICE_MESH_SHAPE={','.join(map(str, shape))}", f"REMAT={remat}"]
    try:
        session = Session(override(type(experiment), sets)(), devices)
        found = predict(session, chip_of(options), options.topology, options.step)
    except (UsageError, NotImplementedError, jax.errors.JaxRuntimeError) as error:
        return {"fits": False, "reason": str(error).partition("\n")[0]}
    if "compiler" in found:
        found["reason"] = found["compiler"]["message"]
    return found


def _key(experiment: Experiment, options: PlanOptions) -> dict[str, Any]:
    """What a stored result must agree in to be taken for one of this sweep."""
    settled = json.dumps(snapshot(experiment, dict.fromkeys(experiment.MESH_AXES, 1)), sort_keys=True)
    return {
        "key": hashlib.sha256(settled.encode()).hexdigest()[:16],
        "jax": jax.__version__,
        "machine": [options.topology, options.chip, options.devices],
        "of_step": options.step,
    }


def _read(file: Path, experiment: Experiment, options: PlanOptions) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    results = []
    for line in file.read_text().splitlines():
        try:
            results.append(json.loads(line))
        except ValueError:
            continue  # a line cut off by a kill is planned again
    key = _key(experiment, options)
    return [result for result in results if all(result.get(name) == value for name, value in key.items())]


def _rank(result: dict[str, Any]) -> tuple[bool, float, float]:
    seconds = result.get("roofline", {})
    return not result.get("fits"), result.get("roofline_step_seconds", float("inf")), sum(seconds.values())


def _cells(result: dict[str, Any]) -> tuple[str, ...]:
    shape = "x".join(map(str, result["shape"]))
    peak = result.get("memory_bytes_per_device", {}).get("peak")
    memory = render.size(peak) if peak is not None else ""
    if "roofline_step_seconds" not in result:
        return shape, result["remat"], "no", memory, "", "", "", result.get("reason", "")[:90]
    speed = f"{result['roofline_step_seconds']:.3g} s", f"{result['roofline_tokens_per_second']:,.0f}"
    fits = "yes" if result["fits"] else "no"
    return shape, result["remat"], fits, memory, *speed, f"{result['roofline_mfu']:.1%}", ""


def _line(result: dict[str, Any]) -> str:
    return "  ".join(cell for cell in _cells(result) if cell)
