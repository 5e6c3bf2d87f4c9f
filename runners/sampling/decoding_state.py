"""What a model remembers of sequences, as a file: read once, gone on from at any time."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization

from layers.errors import UsageError
from runners.session import Session
from tasks.decoding.generation import Memory
from tasks.storage.files import make_folder, place, write_whole


def _paths(state: Any) -> list[str]:
    """Names of the state's arrays, which say the order of their dimensions."""
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(state)]


def write_memory(path: str, session: Session, memory: Memory, capacity: int, read_by: str) -> None:
    """Writes the memory, which has room for `capacity` positions, whole or not at all.

    Args:
      path: the file.
      session: whose model remembers.
      memory: what it remembers.
      capacity: positions that the state has room for.
      read_by: which weights read it; others may not go on from it.
    """
    content = {
        "experiment": session.name,
        "read_by": read_by,
        "capacity": capacity,
        "drawn": int(memory.drawn),
        "unread": np.asarray(memory.unread_b),
        "position": np.asarray(memory.position_b),
        "counts": None if memory.counts_bv is None else np.asarray(memory.counts_bv),
        "paths": _paths(memory.state),
        "leaves": {str(i): np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(memory.state))},
    }
    target = place(path)
    try:
        make_folder(target.parent)
        write_whole(target, serialization.msgpack_serialize(content))
    except OSError as error:
        raise UsageError(f"The state cannot be written to '{path}': {error.strerror or error}.") from error


def read_memory(path: str, session: Session, prompts: Sequence[Sequence[int]], read_by: str) -> tuple[Memory, int]:
    """The memory in a file, for as many rows as there are prompts, and the positions it has room for.

    Raises:
      UsageError: the file cannot be read, is of another experiment, other weights or other sizes, or holds another
        number of rows; or the prompts have different lengths, which would need padding in the middle.
    """
    try:
        content: Any = serialization.msgpack_restore(place(path).read_bytes())
        names = ("experiment", "read_by", "capacity", "drawn", "unread", "position")
        name, reader, capacity, drawn, unread, position = (content[key] for key in names)
        leaves = [content["leaves"][str(i)] for i in range(len(content["leaves"]))]
    except OSError as error:
        raise UsageError(f"The state '{path}' cannot be read: {error.strerror or error}.") from error
    except Exception as error:  # msgpack raises what it likes at bytes that are none of its own
        raise UsageError(f"'{path}' is no state written by --save_state.") from error
    rows = len(unread)
    if rows != len(prompts):
        raise UsageError(f"The state '{path}' holds {rows} rows: give as many prompts, or none for one row.")
    if len({len(prompt) for prompt in prompts}) != 1:
        raise UsageError("Prompts that go on from a state must have one length in tokens.")
    empty = jax.eval_shape(lambda: session.task.init_decode_state(rows, capacity))
    if name != session.name or [leaf.shape for leaf in jax.tree.leaves(empty)] != [leaf.shape for leaf in leaves]:
        raise UsageError(f"The state '{path}' is of {name}, in other sizes than {session.name} has: read it anew.")
    if content.get("paths") != _paths(empty):
        raise UsageError(
            f"The state '{path}' was written by another version, which kept it in another form: read it anew."
        )
    if reader != read_by:
        raise UsageError(f"The state '{path}' was read by {reader}, and these are {read_by}: read it anew.")
    state = jax.tree.unflatten(jax.tree.structure(empty), leaves)
    return Memory(state, unread, position, jnp.int32(drawn), content.get("counts")), capacity
