"""Training time that a checkpoint of GPT-2 with 124M weights and AdamW takes, and a plain write; time of a restore.

python -m benchmarks.saving
"""

import concurrent.futures
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.implementations import vortaro
from benchmarks.implementations.work import SIZES
from benchmarks.tables import flags, machine, show, timed
from runners.training.checkpoints import Checkpoints
from runners.training.workdir import open_workdir


def write(path: Path, size: int) -> None:
    """Writes a file of `size` bytes and waits until the disk has it."""
    part = np.ones(min(size, 1 << 26), np.uint8)
    with path.open("wb", buffering=0) as file:
        for begin in range(0, size, len(part)):
            file.write(part[: size - begin].data)
        os.fsync(file.fileno())


def main() -> int:
    parser = flags(__doc__)
    parser.add_argument("--size", choices=SIZES, default="124M")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    size = SIZES[options.size]
    session = vortaro.session_of(size, {"REMAT=dots"})
    seconds: dict[str, list[float]] = {}
    note = lambda name, work: seconds.setdefault(name, []).append(timed(work))
    thread = concurrent.futures.ThreadPoolExecutor(max_workers=1)
    with session.placed(), tempfile.TemporaryDirectory() as folder, thread:
        batch = session.host_batches.put(vortaro.batch_of(size))
        update = session.functions.compile_step(batch)
        state: Any = jax.block_until_ready(update(session.functions.init(), batch, session.seed))

        def step() -> None:
            nonlocal state
            state = jax.block_until_ready(update(state, batch, session.seed))

        workdir = open_workdir(folder, session.experiment, session.mesh_shape)
        checkpoints, extra = Checkpoints(workdir), {"tokens_seen": 0, "input": None}
        save = lambda number: checkpoints.save(number, state, extra, None, continues=True)

        def turn(number: int) -> None:
            note("an update", step)
            note("a save, until training continues", lambda: save(number))
            note("the update during its writing", step)
            note("until it is written", checkpoints.wait)
            note("an update", step)
            file = Path(folder, f"{number}.bin")
            writing = thread.submit(write, file, state_bytes)
            note("an update during a plain write", step)
            note("until that is written", writing.result)
            if number > 1:
                Path(folder, f"{number - 1}.bin").unlink()

        state_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(state) if hasattr(leaf, "nbytes"))
        for number in range(options.rounds):
            turn(number + 1)
        for _ in range(options.rounds):
            note("a restore", lambda: jax.block_until_ready(checkpoints.require(session.abstract.state, "last")[0]))
        checkpoints.close()
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    alone = medians["an update"]
    parts = ("a save, until training continues", "the update during its writing", "until it is written")
    medians["training time lost per save"] = sum(medians[part] for part in parts) - alone
    plain = ("an update during a plain write", "until that is written")
    medians["training time lost per plain write"] = sum(medians[part] for part in plain) - alone
    lines = [{"what": name, "seconds": value} for name, value in medians.items()]
    facts = {"machine": machine(), "state": f"{state_bytes / 2**30:.2f} GiB", "turns": options.rounds}
    show("checkpoints", lines, facts, options.publish)
    return 0


if __name__ == "__main__":
    sys.exit(main())
