"""The input's position in a checkpoint: one for all processes, or one per process if they differ."""

import json
from typing import Annotated, Any, TypedDict

import jax
import numpy as np
from jax.experimental import multihost_utils

from layers.errors import UsageError
from tasks.inputs.indexed import IndexedInput
from tasks.storage.json_values import Count

State = dict[str, Any]


class _NextBatch(TypedDict):
    next_batch: Count


class _Position(_NextBatch, total=False):
    data: str
    snapshot: dict[str, Any] | None


class _Host(_Position, total=False):
    hosts: list[_Position]


class _Counts(TypedDict):
    tokens_seen: Count
    input: _Host | None


class SavedState(_Counts, total=False):
    """What a checkpoint has besides arrays: counts, and the input's position."""

    window_tokens: Count
    flops: Annotated[float, 0] | None  # of earlier versions: unknown
    checksums: dict[str, Count]


def require_same_data(state: State | None, source: IndexedInput) -> None:
    """Raises a UsageError if a checkpoint's input read other data than `source` does now."""
    before, now = (state or {}).get("data"), source.fingerprint_of(int((state or {}).get("next_batch", 0)))
    if before is not None and now != before:
        raise UsageError(
            f"The training data have changed since the checkpoint (then {before}, now {now}). Training may repeat rows "
            f"or use held-out data. Restore the data, or add --allow_changes to resume anyway."
        )


def gathered(state: State | None) -> State | None:
    """Returns the state to save, the same in all processes; called by all of them.

    A state with a "snapshot" belongs to the host that read it; the result then has the states of all hosts in "hosts".
    """
    if state is None or "snapshot" not in state or jax.process_count() == 1:
        return state
    mine = np.frombuffer(json.dumps(state).encode(), np.uint8)
    sizes = np.ravel(multihost_utils.process_allgather(np.array(len(mine))))
    rows = multihost_utils.process_allgather(np.pad(mine, (0, sizes.max() - len(mine))))
    hosts = [json.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]
    return {"next_batch": state["next_batch"], "hosts": hosts}


def own(state: State | None) -> State | None:
    """Returns this process's part of a saved state; only the batch number if the number of processes has changed."""
    if state is None or ("snapshot" not in state and "hosts" not in state):
        return state
    hosts = state.get("hosts", [state])
    if len(hosts) == jax.process_count():
        return hosts[jax.process_index()]
    if jax.process_index() == 0:
        print(
            f"The input's state was saved by {len(hosts)} processes, and now there are {jax.process_count()}. The "
            f"input is read from its start up to the saved batch, in the new order.",
            flush=True,
        )
    return {"next_batch": state["next_batch"]}
