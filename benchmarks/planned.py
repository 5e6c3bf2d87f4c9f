"""Compares plans with one GPU: the peak of memory, the kernels of attention and the time of an update.

    python -m benchmarks.planned --topology=h100:1x1     plans all cases, a quarter of a minute each; needs no GPU
    python -m benchmarks.planned --publish               measures them on the attached GPU

Every case is planned by the compiler alone, as for a GPU that is not there, and then compiled and run on the GPU, each
in a process of its own. `planned` is the plan's peak, `compiled` that of the program compiled with the GPU, whose
matrix products are tuned, `allocated` the most that JAX's allocator had given out after some updates. Existing plans in
plans/planned are kept. `--publish` writes the table into docs/reference/benchmarks.md.
"""

import argparse
import dataclasses
import fnmatch
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.tables import DOCS, OUT_OF_MEMORY, machine, show
from runners.machine.chips import CHIPS, GIB

FOLDER = Path("plans/planned")
ONE = "DEVICE_MESH_SHAPE=1,1"
CASES = {
    "Gpt2Small, scores materialised": ("gpt2.Gpt2Small", "BATCH_SIZE=32"),
    "Gpt2Small": ("gpt2.Gpt2Small", "BATCH_SIZE=32", "ATTENTION_DROPOUT=0"),
    "Pythia14M, largest batch": ("pythia.Pythia14M", "BATCH_SIZE=9536"),
    "Pythia14M, next batch": ("pythia.Pythia14M", "BATCH_SIZE=9568"),
    "Gpt2XL": ("gpt2.Gpt2XL", "BATCH_SIZE=8", "ATTENTION_DROPOUT=0"),
    "Llama3_2_1B": ("llama.Llama3_2_1B", ONE, "BATCH_SIZE=2", "GRADIENT_ACCUMULATION=1"),
    "VQThroughput": ("vq.VQThroughput",),
    "MoeLm8x2B": ("gshard.MoeLm8x2B", ONE, "BATCH_SIZE=8"),
    "Pythia160M, REMAT=none": ("pythia.Pythia160M", ONE, "BATCH_SIZE=16", "GRADIENT_ACCUMULATION=1", "REMAT=none"),
    "Pythia160M, REMAT=full": ("pythia.Pythia160M", ONE, "BATCH_SIZE=16", "GRADIENT_ACCUMULATION=1"),
    "Pythia160M, REMAT=offload": (
        "pythia.Pythia160M",
        ONE,
        "BATCH_SIZE=16",
        "GRADIENT_ACCUMULATION=1",
        "REMAT=offload",
    ),
    "Gemma3_270M": ("gemma.Gemma3_270M", ONE, "BATCH_SIZE=2", "GRADIENT_ACCUMULATION=1"),
    "MLPerfTrainBertDense2B": ("wiki_bert.MLPerfTrainBertDense2B", ONE, "BATCH_SIZE=16"),
    "MuMedium": ("mu.MuMedium", ONE, "BATCH_SIZE=128"),
}
TINY = {"GptSmall": ("gpt.GptSmall", "BATCH_SIZE=2", "DEVICE_MESH_SHAPE=1,1")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="GLOB", help="some cases; the others keep their lines")
    parser.add_argument("--topology", help="plan for it and measure nothing")
    parser.add_argument("--seconds", type=float, default=420, help="time limit after which no case is started")
    parser.add_argument("--tiny", action="store_true", help="a small model, to test the script")
    parser.add_argument("--publish", action="store_true", help="write the table into docs/reference/benchmarks.md")
    parser.add_argument("--measure", metavar="CASE", help=argparse.SUPPRESS)  # the process of one case
    options = parser.parse_args()
    cases = TINY if options.tiny else CASES
    chosen = [name for name in cases if not options.cases or any(fnmatch.fnmatch(name, g) for g in options.cases)]
    if options.measure:
        print(json.dumps(measure(cases[options.measure])))
        return 0
    if options.topology:
        return 0 if all(_plan(name, cases[name], options.topology) for name in chosen) else 1
    device, topology = _attached()
    lines = {line["case"]: line for line in _published() if options.cases}
    end = time.monotonic() + options.seconds
    for name in chosen:
        if time.monotonic() > end:
            lines[name] = {"case": name, "note": "not measured: no time left"}
            continue
        lines[name] = _line(name, _plan(name, cases[name], topology), _measured(name, options.tiny))
        ordered = [lines[one] for one in cases if one in lines]
        show("planned", ordered, {"machine": machine(), "device": device, "plans": topology}, options.publish)
    return 0


def _published() -> list[dict[str, Any]]:
    """Returns the lines of the published table."""
    file = DOCS / "measurements" / "planned.json"
    return json.loads(file.read_text())["lines"] if file.exists() else []


def measure(case: tuple[str, ...], seconds: float = 2.0) -> dict[str, Any]:
    """Returns peaks in bytes, kernels as in plan.json and seconds of an update on the first attached device."""
    import jax

    from layers.attention.implementations import recorded
    from registry.resolve import resolve
    from runners.planner.programs.compilation import memory
    from runners.session import Session

    session = Session(resolve(case[0], list(case[1:])), jax.devices()[:1])
    with session.placed():
        batch = session.host_batches.put(_random_rows(session))
        began = time.perf_counter()
        with recorded() as attention:
            compiled = session.functions.compile_step(batch)
        peak = memory(compiled, has_peak=True)["peak"]
        found: dict[str, Any] = {"compile_seconds": time.perf_counter() - began, "compiled": peak}
        found |= _kernels(session, compiled.as_text() or "", peak, attention)
        try:
            state = jax.block_until_ready(compiled(session.functions.init(), batch, session.seed))
            times = []
            while sum(times) < seconds:
                began = time.perf_counter()
                for _ in range(3):
                    state = compiled(state, batch, session.seed)
                jax.block_until_ready(state)
                times.append((time.perf_counter() - began) / 3)
            found["seconds"] = min(times)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            found["note"] = OUT_OF_MEMORY
    statistics = jax.devices()[0].memory_stats() or {}
    return found | {name: statistics.get(name) for name in ("peak_bytes_in_use", "bytes_limit")}


def _random_rows(session: Any) -> Any:
    """Returns a batch of random tokens with the fields of the planned one; each row is one document."""
    import jax
    import numpy as np

    shapes = session.abstract.batch
    batch = jax.tree.map(lambda x: np.ones(x.shape, x.dtype), shapes)
    tokens = np.random.default_rng(0).integers(1, 256, shapes.inputs.shape, dtype=np.int32)
    positions = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
    given = {name: positions for name in ("positions", "row_positions") if getattr(shapes, name) is not None}
    return dataclasses.replace(batch, inputs=tokens, targets=tokens, **given)


def _kernels(session: Any, text: str, peak: int, attention: Any) -> dict[str, Any]:
    """Returns `kernels` and `findings` of the program that the attached GPU runs, as plan.json has them."""
    from registry.records.snapshot import weight_summary
    from runners.planner.programs.findings import Judged, judge

    rows = weight_summary(session.experiment, session.mesh_shape)["weights"]
    return judge(
        Judged(
            text=text,
            experiment=session.experiment,
            weights={row["path"]: row["shape"] for row in rows},
            length=session.train.input.seq_len,
            attention=attention,
            mesh=session.mesh_shape,
            granules=[0],
            peak=peak,
        )
    )


def _attached() -> tuple[str, str]:
    """Returns the kind of the attached device and the name of its topology, asked in a process of its own."""
    code = "import jax; print(jax.devices()[0].device_kind)"
    kind = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    names = [name for name, chip in CHIPS.items() if chip.gpu is not None]
    known = [name for name in sorted(names, key=len) if name.partition("-")[0].upper() in kind.upper()]
    return kind, f"{known[0] if known else 'h100'}:1x1"


def _plan(name: str, case: tuple[str, ...], topology: str) -> dict[str, Any]:
    """Returns the plan of a case, made now if it does not exist; {} if it cannot be made."""
    folder = FOLDER / f"{name.replace(', ', '-').replace(' ', '_')}-{topology.replace(':', '-')}"
    file = folder / "plan.json"
    if not file.exists():
        print(f"{name} on {topology} ...", flush=True)
        flags = [f"--exp={case[0]}", *(f"--set={one}" for one in case[1:]), "--mode=plan", f"--topology={topology}"]
        command = [sys.executable, "-m", "runners.main", *flags, f"--workdir={folder}"]
        ended = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"JAX_PLATFORMS": "cpu"})
        if not file.exists():
            print(ended.stdout[-2000:] + ended.stderr[-2000:], flush=True)
            return {}
    return json.loads(file.read_text())


def _measured(name: str, tiny: bool) -> dict[str, Any]:
    """Returns what `measure` finds, in a process of its own; a failure is its note."""
    command = [sys.executable, "-m", "benchmarks.planned", f"--measure={name}", *(["--tiny"] if tiny else [])]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        print(ended.stderr[-1500:], flush=True)
        return {"note": f"failed: {(ended.stderr.splitlines() or ['no message'])[-1][:150]}"}
    return json.loads(ended.stdout.splitlines()[-1])


def _line(name: str, plan: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Returns a case's line: GiB, milliseconds, and what the two programs disagree about."""
    memory, roofline = plan.get("memory_bytes_per_device", {}), plan.get("roofline_step_seconds")
    seconds, notes = found.get("seconds"), [found["note"]] if "note" in found else []
    if "kernels" in found and "kernels" in plan:
        notes += _differences(plan["kernels"], found["kernels"])
    return {
        "case": name,
        "fits": {True: "yes", False: "no", None: "-"}[plan.get("fits")],
        "planned, GiB": _gib(memory.get("peak")),
        "compiled": _gib(found.get("compiled")),
        "allocated": _gib(found.get("peak_bytes_in_use")),
        "of": _gib(found.get("bytes_limit")),
        "roofline, ms": roofline and roofline * 1e3,
        "measured, ms": seconds and seconds * 1e3,
        "share": roofline / seconds if roofline and seconds else None,
        "attention": ", ".join(sorted(set(found.get("kernels", {}).get("attention", {}).values()))) or "-",
        "note": "; ".join(notes),
    }


def _differences(planned: dict[str, Any], run: dict[str, Any]) -> list[str]:
    """Returns what the kernels of the planned program and of the one that ran disagree about."""
    kernels = ", ".join(sorted(set(planned["attention"].values())))
    found = [] if planned["attention"] == run["attention"] else [f"planned attention: {kernels}"]
    shares = [{one["dtype"]: one["flops"] for one in program["products"]} for program in (planned, run)]
    found += [] if shares[0] == shares[1] else [f"planned products: {shares[0]}, run: {shares[1]}"]
    scores = [sum(one["bytes"] for one in program["scores"]) for program in (planned, run)]
    found += [] if scores[0] == scores[1] else [f"scores: {scores[0]:,} planned, {scores[1]:,} bytes run"]
    return found


def _gib(count: int | None) -> float | None:
    return None if count is None else count / GIB


if __name__ == "__main__":
    sys.exit(main())
