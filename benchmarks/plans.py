"""Plans experiments of a fixed size with the TPU compiler; writes the table of docs/howto/plans.md.

    python -m benchmarks.plans                  all experiments, half a minute each; needs the extra `tpu`, no TPU
    python -m benchmarks.plans 'gshard.Moe*'    some; the others keep their rows

Each experiment is planned in its own process, into plans/slices/NAME. Existing plans are kept; remove a folder to plan
its experiment again.
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
from tasks.storage.files import write_whole

FOLDER = Path("plans/slices")
PAGE = Path("docs/howto/plans.md")
BEGIN, END = "<!-- table: python -m benchmarks.plans -->", "<!-- end of table -->"
# Slices by number of devices. The BERT runs were MLPerf's on TPU v4, the GShard runs on the two-core
# chips of v3; experiments for any number of devices are not planned. Entries for H100 GPUs of 80 GB are
# planned on as many chips of TPU v5p, which have 95 GiB.
V5P = {8: "v5p:2x2x2", 16: "v5p:2x2x4", 32: "v5p:2x4x4", 64: "v5p:4x4x4", 128: "v5p:4x4x8", 256: "v5p:4x8x8"}
SLICES = {
    "gshard": {8: "v3:2x2", 128: "v3:8x8", 512: "v3:16x16", 1024: "v3:16x32", 2048: "v3:32x32"},
    "wiki_bert": {64: "v4:4x4x4", 1024: "v4:8x8x16", 2048: "v4:8x16x16"},
    "vq": {64: "v4:4x4x4"},
    "mu": {8: "v3:2x2", 128: "v3:8x8", 256: "v3:8x16"},
    "zero": {32: "v3:4x4"},
    **dict.fromkeys(("gemma", "llama", "mistral", "olmo", "pythia", "qwen"), V5P),
}
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
    "entry | slice | mesh | weights | optimizer | peak of memory | fits | sent per step | bound | step | "
    "tokens/s | promised"
)


def main(globs: list[str]) -> int:
    """Creates missing plans, then writes the table of all existing plans; rows without a plan stay as they are."""
    names = [name for name in entries() if topology(name)]
    selection = [name for name in names if not globs or any(fnmatch.fnmatch(name, glob) for glob in globs)]
    for name in selection:
        if not _file(name).exists():
            print(f"{name} on {topology(name)} ...", flush=True)
            _plan(name)
    text = PAGE.read_text()
    table = text.partition(BEGIN)[2].partition(END)[0].splitlines()
    kept = {line.split()[1].rstrip(","): line for line in table if line.startswith("| ")}
    rows = [
        _row(name, json.loads(_file(name).read_text())) if _file(name).exists() else kept[name]
        for name in names
        if _file(name).exists() or name in kept
    ]
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    lines = [f"| {COLUMNS} |", "|---" * (COLUMNS.count("|") + 1) + "|", *rows]
    write_whole(PAGE, f"{before}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{after}")
    print(f"{len(rows)} of {len(names)} plans in {PAGE}")
    return 0


def topology(name: str) -> str | None:
    """Returns the slice an experiment is planned for, or None."""
    if name.endswith("32x32"):
        return "v3:32x32"
    return SLICES.get(name.partition(".")[0], {}).get(math.prod(entries()[name].mesh))


def _file(name: str) -> Path:
    return FOLDER / name / "plan.json"


def _plan(name: str) -> None:
    step = "decode" if "Decode" in name else "train"
    command = ["-m", "runners.main", f"--exp={name}", "--mode=plan", f"--plan_step={step}"]
    command.append(f"--topology={topology(name)}")
    ended = subprocess.run([sys.executable, *command, f"--workdir={FOLDER / name}"], capture_output=True, text=True)
    if not _file(name).exists():
        print(ended.stdout[-2000:] + ended.stderr[-2000:], flush=True)


def _row(name: str, plan: dict[str, Any]) -> str:
    memory = plan["memory_bytes_per_device"]
    mesh = "x".join(map(str, plan["mesh"].values()))
    promised = PROMISED.get(name.rpartition(".")[2])
    shown = name + (", one token" if plan["step"] == "decode" else "")
    cells = [shown, plan["topology"], mesh, size(memory["weights"]), size(memory["optimizer"])]
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
