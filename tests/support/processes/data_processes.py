"""One of several processes that learn from every kind of data.

python -m tests.support.processes.data_processes PORT COUNT INDEX FOLDER FIRST LAST

FOLDER/kinds.json has the overrides of each kind. Trains updates FIRST to LAST of each: from 0 it begins, from later
it resumes from the checkpoint; it saves one at SAVED. Prints, by kind, digests of what was read and of the weights, and
the batch of the reader's snapshot that it resumed from.
"""

import dataclasses
import hashlib
import json
import sys
from pathlib import Path

import jax
import numpy as np

from registry.resolve import resolve
from runners.processes.coordination import ProcessGroup
from runners.processes.distributed import connected_group
from runners.session import Session
from runners.training.checkpoints import Checkpoints
from runners.training.input_state import gathered, own

SAVED = 2


def digest(tree) -> str:
    """Of the arrays that this process holds."""
    content = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        for shard in leaf.addressable_shards:
            content.update(np.asarray(shard.data).tobytes())
    return content.hexdigest()[:16]


COMPILED = {}


def _update(session: Session, batch):
    """The compiled update, one for all kinds whose models and batches have the same arrays."""
    shapes = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(session.abstract.state)]
    key = str((shapes, batch.inputs.shape, jax.tree.structure(batch)))
    if key not in COMPILED:
        COMPILED[key] = session.functions.compile_step(batch)
    return COMPILED[key]


def learn(name: str, overrides: list[str], workdir: Path, first: int, last: int, processes: ProcessGroup) -> dict:
    """Updates `first` to `last` of an entry; what was read and what came of it."""
    knobs = ["DEVICE_MESH_SHAPE=4,1", "LOG_EVERY=1", "SEQ_LEN=16", "BATCH_SIZE=8"]
    modules = ["own_tasks"] if "DATA=seqio" in overrides else []
    experiment = resolve("gpt.GptStdlib", [*knobs, *overrides], smoke=True, imports=modules)
    experiment = type(experiment).derive(CACHE_DIR=f"{workdir}/cache")()  # without effect on data that is not cached
    session = Session(experiment, processes=processes)
    session.require_data(train=True, splits=("validation",))
    program = dataclasses.replace(session.train, save_every=1, keep_last=4)
    checkpoints = Checkpoints(workdir / name.replace(" ", "_"), program, processes=processes)
    read, saved = [], {"input": None}
    with session.placed():
        if first:
            state, saved = checkpoints.require(session.abstract.state, str(first))
        else:
            state = session.settle(session.functions.init())
        start = own(saved["input"])
        batches = session.host_batches.iterate(session.train.input, start)
        for step in range(first + 1, last + 1):
            batch, position = next(batches)
            update = _update(session, batch)
            read.append(digest(batch))
            state = session.settle(update(state, batch, session.seed))
            if step == SAVED:
                checkpoints.save(step, state, {"tokens_seen": 0, "input": gathered(position)}, None)
    batches.close()
    checkpoints.close()
    snapshot = (start or {}).get("snapshot")
    return {"read": read, "weights": digest(state.variables), "snapshot": snapshot and snapshot["batch"]}


if __name__ == "__main__":
    port, count, index, folder, first, last = sys.argv[1:]
    jax.distributed.initialize(f"localhost:{port}", int(count), int(index))
    processes = connected_group()
    kinds = json.loads(Path(folder, "kinds.json").read_text())
    print(
        json.dumps({k: learn(k, sets, Path(folder), int(first), int(last), processes) for k, sets in kinds.items()}),
        flush=True,
    )
