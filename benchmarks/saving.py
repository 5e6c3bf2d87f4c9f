"""Time that a checkpoint of GPT-2 with 124M weights and AdamW blocks training, and time to restore it.

python -m benchmarks.saving
"""

import statistics
import sys
import tempfile
from typing import Any

import jax

from benchmarks.implementations import vortaro
from benchmarks.implementations.work import SIZES
from benchmarks.tables import flags, machine, show, timed
from runners.training.checkpoints import Checkpoints
from runners.training.workdir import open_workdir


def main() -> int:
    parser = flags(__doc__)
    parser.add_argument("--size", choices=SIZES, default="124M")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    size = SIZES[options.size]
    session = vortaro.session_of(size, {"REMAT=dots"})
    seconds: dict[str, list[float]] = {}
    note = lambda name, work: seconds.setdefault(name, []).append(timed(work))
    with session.placed(), tempfile.TemporaryDirectory() as folder:
        batch = session.host_batches.put(vortaro.batch_of(size))
        update = session.functions.compile_step(batch)
        state: Any = jax.block_until_ready(update(session.functions.init(), batch, session.seed))

        def step() -> None:
            nonlocal state
            state = jax.block_until_ready(update(state, batch, session.seed))

        workdir = open_workdir(folder, session.experiment, session.mesh_shape)

        def turn(number: int) -> None:
            checkpoints, extra = Checkpoints(workdir), {"tokens_seen": 0, "input": None}
            note("an update", step)
            note("a save, until training continues", lambda: checkpoints.save(number, state, extra, None))
            note("the update during its writing", step)
            note("until it is written", checkpoints.close)
            reader = Checkpoints(workdir)
            note("a restore", lambda: jax.block_until_ready(reader.require(session.abstract.state, "last")[0]))
            reader.close()

        for number in range(options.rounds):
            turn(number + 1)
        state_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(state) if hasattr(leaf, "nbytes"))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    parts = ("a save, until training continues", "the update during its writing")
    medians["training time lost per save"] = sum(medians[part] for part in parts) - medians["an update"]
    lines = [{"what": name, "seconds": value} for name, value in medians.items()]
    facts = {"machine": machine(), "state": f"{state_bytes / 2**30:.2f} GiB", "turns": options.rounds}
    show("checkpoints", lines, facts, options.publish)
    return 0


if __name__ == "__main__":
    sys.exit(main())
