"""Kinds of training runs that faults disturb: the experiment, its settings, its devices."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from testing import formats
from testing.launches import STEPS

DATA = "DATA_FOLDER"  # in a setting: the folder that `write_data` has written


@dataclasses.dataclass(frozen=True)
class Run:
    """One kind of run, in its small form (--smoke)."""

    name: str
    title: str  # head of its column in the table
    experiment: str
    settings: Sequence[str] = ()  # in addition to testing.launches.SETTINGS
    devices: int = 1  # virtual devices of each process

    def overrides(self, data: Path) -> tuple[str, ...]:
        """Returns the values of --set, with the folder of the data."""
        return tuple(setting.replace(DATA, str(data)) for setting in self.settings)


_PHASES = (
    f"PHASES=(Phase(steps={STEPS // 3}), Phase(steps={STEPS // 3}, SEQ_LEN=64, BATCH_SIZE=4), "
    f'Phase(steps={STEPS // 3}, schedule="linear"))'
)
_MIXTURE = f'MIXTURE=(("jsonl:{DATA}/jsonl/*.jsonl",0.7),("webdataset:{DATA}/webdataset/*.tar",0.3))'
RUNS = {
    run.name: run
    for run in (
        Run("dense", "dense", "tiny.StdlibTiny"),
        Run("vq", "VQ, carried state", "vq.VQStdlib", ("TBPTT_LEN=16",)),
        Run("experts", "experts", "mix.GptMoeStdlib", devices=2),
        Run("zero3", "ZeRO 3", "tiny.StdlibTiny", ("ZERO_STAGE=3",), devices=2),
        Run(
            "mixture",
            "packed mixture",
            "tiny.StdlibTiny",
            ("DATA=mixture", _MIXTURE, "ROWS=pack", f"CACHE_DIR={DATA}/cache"),
        ),
        Run("phases", "phases", "tiny.StdlibTinyPhases", (_PHASES,)),
    )
}


def write_data(folder: Path) -> None:
    """Writes the documents of the packed mixture, of 0 to 96 words each, as JSON lines and as tar shards."""
    documents = [" ".join(f"word{number * place % 89}" for place in range(number % 97)) for number in range(400)]
    folder.mkdir()
    formats.jsonl(documents[::2], folder / "jsonl")
    formats.webdataset(documents[1::2], folder / "webdataset")
