"""One of several processes that train together: `python -m tests.runners.two_processes PORT COUNT INDEX STAGE`."""

import json
import sys

import jax

from registry.resolve import resolve
from runners.session import Session

if __name__ == "__main__":
    port, count, index, stage = sys.argv[1:]
    if int(count) > 1:
        jax.distributed.initialize(f"localhost:{port}", int(count), int(index))
    knobs = ["DEVICE_MESH_SHAPE=8,1", f"ZERO_STAGE={stage}", "MICROBATCHES=2", "BATCH_SIZE=16", "LOG_EVERY=1"]
    session = Session(resolve("zero.Zero417MStage1", knobs, smoke=True))
    losses = []
    with session.placed():
        batches = session.batches(session.train.input)
        batch, _ = next(batches)
        update, state = session.compile_step(batch), session.settle(session.init())
        for _ in range(3):
            state = session.settle(update(state, batch, session.seed))
            losses.append(float(state.sums.loss) / float(state.sums.weight))
            batch, _ = next(batches)
    batches.close()
    print(json.dumps(losses), flush=True)
