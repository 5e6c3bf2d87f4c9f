"""Where the input stands, as a checkpoint keeps it: that of every process, where each has its own."""

import json
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from layers.errors import UsageError
from tasks.inputs.indexed import IndexedInput

State = dict[str, Any]


def require_same_data(state: State | None, source: IndexedInput) -> None:
    """Raises a UsageError where a checkpoint's input read other data than `source` does now."""
    before, now = (state or {}).get("data"), source.fingerprint
    if before is not None and now != before:
        raise UsageError(
            f"The training data have changed since the checkpoint (they were {before}, and are {now}): what was held "
            f"out may be trained on now, and rows may come again. --allow_changes goes on anyway."
        )


def gathered(state: State | None) -> State | None:
    """The state to be saved, the same on all processes: called by all of them at once.

    A state with a "snapshot" belongs to the host that read it: then it holds those of all, in "hosts".
    """
    if state is None or "snapshot" not in state or jax.process_count() == 1:
        return state
    mine = np.frombuffer(json.dumps(state).encode(), np.uint8)
    sizes = np.ravel(multihost_utils.process_allgather(np.array(len(mine))))
    rows = multihost_utils.process_allgather(np.pad(mine, (0, sizes.max() - len(mine))))
    hosts = [json.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]
    return {"next_batch": state["next_batch"], "hosts": hosts}


def own(state: State | None) -> State | None:
    """This process's part of a saved state; where there are more or fewer processes now, only the batch's number."""
    if state is None or ("snapshot" not in state and "hosts" not in state):
        return state
    hosts = state.get("hosts", [state])
    if len(hosts) == jax.process_count():
        return hosts[jax.process_index()]
    if jax.process_index() == 0:
        print(
            f"The input's state was saved by {len(hosts)} processes, and there are {jax.process_count()} now: it is "
            f"read through from the start, in the order of these.",
            flush=True,
        )
    return {"next_batch": state["next_batch"]}
