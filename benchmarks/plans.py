"""Plans experiments of a fixed size by the compilers of TPUs and GPUs; writes the table of docs/howto/plans.md.

    python -m benchmarks.plans                  all experiments, half a minute each; needs the extras `tpu` and
                                                `gpu-plan`, no TPU and no GPU
    python -m benchmarks.plans 'gshard.Moe*'    some; the others keep their rows

Each experiment is planned on the TPU slice of its family and on hosts of 8 H100s, H200s or B200s, the first in which it
fits, in processes of their own, into plans/machines/NAME-MACHINE. Existing plans are kept; remove a folder to plan
again. Where a compiler is not installed, the rows of its machines are kept.
"""

import fnmatch
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

from registry.index import entries
from registry.tool.render import size
from runners.planner.topologies import has_gpu_compiler, has_tpu_compiler
from tasks.storage.files import write_whole

FOLDER = Path("plans/machines")
PAGE = Path("docs/howto/plans.md")
BEGIN, END = "<!-- table: python -m benchmarks.plans -->", "<!-- end of table -->"
# Slices by number of devices. The BERT runs were MLPerf's on TPU v4, the GShard runs on the two-core
# chips of v3; experiments for any number of devices are not planned. Entries for H100 GPUs of 80 GB are
# planned on as many chips of TPU v5p, which have 95 GiB, too.
V5P = {
    8: "v5p:2x2x2",
    16: "v5p:2x2x4",
    32: "v5p:2x4x4",
    64: "v5p:4x4x4",
    128: "v5p:4x4x8",
    256: "v5p:4x8x8",
    1024: "v5p:8x8x16",
}
SLICES = {
    "gshard": {8: "v3:2x2", 128: "v3:8x8", 512: "v3:16x16", 1024: "v3:16x32", 2048: "v3:32x32"},
    "wiki_bert": {64: "v4:4x4x4", 1024: "v4:8x8x16", 2048: "v4:8x16x16"},
    "vq": {64: "v4:4x4x4"},
    "mu": {8: "v3:2x2", 128: "v3:8x8", 256: "v3:8x16"},
    "mix": {8: "v3:2x2", 512: "v5p:8x8x8"},
    "zero": {32: "v3:4x4"},
    **dict.fromkeys(("gemma", "gpt2", "llama", "mistral", "olmo", "pythia", "qwen"), V5P),
}
GPUS = ("h100", "h200", "b200")  # an experiment is planned on the first in which it fits
GPUS_OF_HOST = 8
# Tokens per second stated in comments of the reference implementation.
PROMISED = {
    "DenseLm128B8x8": 3_700,
    "DenseLm128B16x16": 18_000,
    "DenseLm128B32x32": 62_000,
    "DenseLm175B32x32": 51_530,
    "DenseLm1T16x16": 1_400,
    "DenseLm12kWide41BAdam16x16": 53_800,
    "DenseLm12kWide41BAdam8x8": 17_400,
    "DenseLm12kWide162BAdam16x16": 12_500,
}
COLUMNS = (
    "entry | machine | mesh | weights | optimizer | peak of memory | fits | sent per step | bound | step | "
    "tokens/s | promised"
)


def main(globs: list[str]) -> int:
    """Creates missing plans, then writes the table of all existing plans; rows without a plan stay as they are."""
    names = [name for name in entries() if slice_of(name) or gpus_of(name, "h100")]
    for name in names:
        if not globs or any(fnmatch.fnmatch(name, glob) for glob in globs):
            _plan_all(name)
    text = PAGE.read_text()
    table = [line for line in text.partition(BEGIN)[2].partition(END)[0].splitlines() if line.startswith("| ")]
    kept = {tuple(cell.strip() for cell in line.split("|")[1:3]): line for line in table}
    rows = []
    for name in names:
        machines = [slice_of(name), *(gpus_of(name, gpu) for gpu in GPUS)]
        for machine in filter(None, machines):
            file = _file(name, machine)
            row = _row(name, json.loads(file.read_text())) if file.exists() else kept.get((_shown(name), machine))
            rows += [row] if row else []
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    lines = [f"| {COLUMNS} |", "|---" * (COLUMNS.count("|") + 1) + "|", *rows]
    write_whole(PAGE, f"{before}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{after}")
    print(f"{len(rows)} plans of {len(names)} experiments in {PAGE}")
    return 0


def slice_of(name: str) -> str | None:
    """Returns the TPU slice an experiment is planned for, or None."""
    if name.endswith("32x32"):
        return "v3:32x32"
    return SLICES.get(name.partition(".")[0], {}).get(math.prod(entries()[name].mesh))


def gpus_of(name: str, gpu: str) -> str | None:
    """Returns hosts of as many GPUs as the experiment has devices, or None if their number does not fill hosts."""
    devices = math.prod(entries()[name].mesh)
    is_fixed = devices > 1 and devices % GPUS_OF_HOST == 0
    return f"{gpu}:{devices // GPUS_OF_HOST}x{GPUS_OF_HOST}" if is_fixed else None


def _file(name: str, machine: str) -> Path:
    return FOLDER / f"{name}-{machine.replace(':', '-')}" / "plan.json"


def _plan_all(name: str) -> None:
    """Makes the missing plans of an experiment."""
    if (machine := slice_of(name)) and has_tpu_compiler():
        _plan(name, machine)
    for gpu in GPUS if has_gpu_compiler() else ():
        machine = gpus_of(name, gpu)
        if machine is None or _plan(name, machine).get("fits"):
            break


def _plan(name: str, machine: str) -> dict[str, Any]:
    """Returns the plan of an experiment on a machine, made now if it does not exist; {} if it cannot be made."""
    file = _file(name, machine)
    if not file.exists():
        print(f"{name} on {machine} ...", flush=True)
        step = "decode" if "Decode" in name else "train"
        flags = [f"--exp={name}", "--mode=plan", f"--plan_step={step}", f"--topology={machine}"]
        command = [sys.executable, "-m", "runners.main", *flags, f"--workdir={file.parent}"]
        ended = subprocess.run(command, capture_output=True, text=True)
        if not file.exists():
            print(ended.stdout[-2000:] + ended.stderr[-2000:], flush=True)
            return {}
    return json.loads(file.read_text())


def _shown(name: str) -> str:
    return name + (", one token" if "Decode" in name else "")


def _row(name: str, plan: dict[str, Any]) -> str:
    memory = plan["memory_bytes_per_device"]
    mesh = "x".join(map(str, plan["mesh"].values()))
    promised = PROMISED.get(name.rpartition(".")[2])
    cells = [_shown(name), plan["topology"], mesh, size(memory["weights"]), size(memory["optimizer"])]
    if "compiler" in plan:
        needed, available = (size(plan["compiler"].get(key, 0)) for key in ("needed_bytes", "available_bytes"))
        cells += [f"{needed} of {available}", "no", "", "", "", ""]
    else:
        sent = sum(exchange["bytes"] for exchange in plan["collectives"])
        bound = max(plan["roofline"], key=plan["roofline"].get).removesuffix("_seconds").replace("_", " ")
        share = f"{size(memory['peak'])} of {size(plan['capacity_bytes_per_device'])}"
        cells += [share, "yes" if plan["fits"] else "no", size(sent), bound]
        cells += [f"{plan['roofline_step_seconds']:.3g} s", f"{plan['roofline_tokens_per_second']:,.0f}"]
    return "| " + " | ".join([*cells, f"{promised:,}" if promised else ""]) + " |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
