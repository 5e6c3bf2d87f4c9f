"""Overhead of the training loop: its steps per second against the bare jitted step in a Python loop.

Both run the same compiled step in one process, alternating; the bare loop reuses one batch. Medians are compared.

    python -m benchmarks.loop
"""

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax

from benchmarks.tables import flags, machine, show, timed
from registry.resolve import resolve
from runners.session import Session
from runners.training import metrics_log
from runners.training.train import TrainOptions, train
from runners.training.workdir import open_workdir

GOAL = 0.97


def bare(session: Session, steps: int) -> float:
    """Returns steps per second of the compiled step alone, on one prepared batch."""
    with session.placed():
        batch = session.host_batches.put(session.train.input.batch(0))
        update = session.functions.compile_step(batch)
        state, seed = session.functions.init(), session.seed
        state = jax.block_until_ready(update(state, batch, seed))

        def all_steps() -> None:
            nonlocal state
            for _ in range(steps):
                state = update(state, batch, seed)
            jax.block_until_ready(state)

        return steps / timed(all_steps)


def looped(session: Session) -> float:
    """Returns steps per second reported by the runner, the first window excluded; includes reading and logging."""
    with tempfile.TemporaryDirectory() as folder:
        workdir = open_workdir(folder, session.experiment, session.mesh_shape)
        train(session, workdir, TrainOptions(tensorboard=False))
        lines = list(metrics_log.read(Path(folder)))
    seconds = [1 / line["steps_per_second"] for line in lines if line["split"] == "train"][1:]
    return 1 / statistics.mean(seconds)


def main() -> int:
    parser = flags(__doc__)
    parser.add_argument("--exp", default="tiny.StdlibTiny")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    window = max(1, options.steps // 5)
    settings = [f"NUM_STEPS={options.steps + window}", f"LOG_EVERY={window}", "EVAL_EVERY=none", "EVAL_ROWS=16"]
    session = Session(resolve(options.exp, [*settings, "SAVE_EVERY=1000000", "WARMUP_STEPS=1"]), jax.devices()[:1])
    lines: list[dict[str, Any]] = []
    for number in range(options.rounds):
        alone, with_loop = bare(session, options.steps), looped(session)
        lines.append({"round": f"{number + 1}", "bare": alone, "runner": with_loop, "ratio": with_loop / alone})
        print(lines[-1], flush=True)
    medians = {name: statistics.median(line[name] for line in lines) for name in ("bare", "runner", "ratio")}
    facts = {"machine": machine(), "steps per second of": options.exp, "goal of the ratio": GOAL}
    show("loop", [*lines, {"round": "median"} | medians], facts, options.publish)
    return 0


if __name__ == "__main__":
    sys.exit(main())
