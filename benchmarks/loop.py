"""What the runner's loop costs: its steps per second against the bare jitted step called in a Python loop.

Both run the same compiled step on the same batches in one process, turn about; medians are compared.

    python -m benchmarks.loop
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import jax

from registry.resolve import resolve
from runners.session import Session
from runners.train import TrainOptions, train
from runners.workdir import open_workdir

GOAL = 0.97


def bare(session: Session, steps: int) -> float:
    """Steps per second of the compiled step on one prepared batch, nothing else."""
    with session.placed():
        batch = session.put(session.train.input.batch(0))
        update = session.compile_step(batch)
        state, seed = session.init(), session.seed
        state = jax.block_until_ready(update(state, batch, seed))
        began = time.perf_counter()
        for _ in range(steps):
            state = update(state, batch, seed)
        jax.block_until_ready(state)
        return steps / (time.perf_counter() - began)


def looped(session: Session) -> float:
    """Steps per second that the runner reports for all windows but the first, with reading, metrics and logging."""
    with tempfile.TemporaryDirectory() as folder:
        workdir = open_workdir(folder, session.experiment, session.mesh_shape)
        train(session, workdir, TrainOptions(tensorboard=False))
        lines = [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]
    seconds = [1 / line["steps_per_second"] for line in lines if line["split"] == "train"][1:]
    return 1 / statistics.mean(seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exp", default="tiny.StdlibTiny")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    window = max(1, options.steps // 5)
    settings = [f"NUM_STEPS={options.steps + window}", f"LOG_EVERY={window}", "EVAL_EVERY=none", "EVAL_ROWS=16"]
    session = Session(resolve(options.exp, [*settings, "SAVE_EVERY=1000000", "WARMUP_STEPS=1"]))
    pairs = []
    for number in range(options.rounds):
        pairs.append((bare(session, options.steps), looped(session)))
        print(f"round {number + 1}: bare {pairs[-1][0]:.2f} steps/s, runner {pairs[-1][1]:.2f} steps/s", flush=True)
    without, with_loop = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(b / a for a, b in pairs)
    print(f"{options.exp}: bare {without:.2f}, runner {with_loop:.2f} steps/s; median ratio {ratio:.3f} (goal {GOAL})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
