"""Small spaces with the figures of every case, by exhaustive search: `python -m tests.runners.planner.search.slices`.

The command compiles all cases (ten minutes on two cores) and writes placements.json. The chips have fast links, so
that what is known before compilation decides: the weight table and FLOPs. On chips whose links decide, a search
compiles every case with a smaller bound than the best one.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from registry.experiment import Experiment
from registry.resolve import resolve
from runners.machine.chips import CHIPS, Chip
from runners.planner.search.best_first import Excluded
from runners.planner.search.cases import Case, cases, dimensions
from tests import conftest  # sets the compiler flags of tests before jax is imported

FILE = Path(__file__).parent / "placements.json"
DEVICES = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slice:
    """An experiment, the dimensions that are searched, and a chip."""

    name: str
    sets: tuple[str, ...] = ()
    over: str
    chip: Chip  # of gpt and vq, some of the fastest cases exceed its memory

    @property
    def experiment(self) -> Experiment:
        return resolve(self.name, list(self.sets), smoke=True)

    @property
    def cases(self) -> list[Case]:
        return cases(self.experiment, DEVICES, dimensions(self.over, self.experiment, "train"))


MEMORY_BOUND = dataclasses.replace(CHIPS["v3"], hbm_bandwidth=1e9, flops=1e15, link_bandwidth=1e18)
COMPUTE_BOUND = dataclasses.replace(CHIPS["v3"], hbm_bandwidth=1e9, flops=1e9, link_bandwidth=1e18)
SLICES = {
    "gshard": Slice(name="gshard.DenseLm8B2x2", over="mesh,zero", chip=MEMORY_BOUND),
    "gpt": Slice(
        name="gpt2.Gpt2Small",
        sets=("ZERO_STAGE=1",),
        over="mesh,remat",
        chip=dataclasses.replace(COMPUTE_BOUND, hbm_bytes=400_000),
    ),
    "vq": Slice(
        name="vq.VQLarge",
        sets=("DEVICE_MESH_SHAPE=8,1,1",),
        over="remat,zero",
        chip=dataclasses.replace(MEMORY_BOUND, hbm_bytes=700_000),
    ),
}


def record(part: Slice, file: Path) -> list[dict[str, Any]]:
    """Returns bounds and plan of every case on a chip with more memory; `file` is a new result file."""
    from runners.planner.machine import Machine
    from runners.planner.search.plans import Plans
    from runners.reports.results import Results

    machine = Machine(chip=dataclasses.replace(part.chip, hbm_bytes=CHIPS["v3"].hbm_bytes), virtual_devices=DEVICES)
    experiment = part.experiment
    plans = Plans(experiment, machine, "train", machine.devices(experiment), Results(file))
    found = []
    for case in part.cases:
        row: dict[str, Any] = {"sets": case.sets}
        for name, bound in zip(("table", "trace"), plans.bounds, strict=True):
            answer = bound(case)
            row[name] = answer.reason if isinstance(answer, Excluded) else list(answer)
        plan, rank = plans.complete(case)
        row["rank"] = rank.reason if isinstance(rank, Excluded) else list(rank)
        row["peak"] = plan.get("memory_bytes_per_device", {}).get("peak")
        row["program"] = plan.get("program")
        found.append(row)
        print(row, flush=True)
    return found


if __name__ == "__main__":
    import tempfile

    conftest.pytest_configure(None)
    stored = json.loads(FILE.read_text()) if FILE.exists() else {}
    for family in sys.argv[1:] or SLICES:
        with tempfile.TemporaryDirectory() as folder:
            stored[family] = record(SLICES[family], Path(folder) / "layouts.jsonl")
        FILE.write_text(json.dumps(stored, indent=1) + "\n")
