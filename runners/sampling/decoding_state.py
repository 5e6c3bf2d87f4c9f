"""Files of decoding states, from which sampling continues without reading the prompt again."""

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
    """Returns the paths of the state's arrays, whose names contain the order of their dimensions."""
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(state)]


def write_memory(path: str, session: Session, memory: Memory, capacity: int, read_by: str) -> None:
    """Writes a decoding state to a file atomically.

    Args:
      path: the file.
      session: session of the model.
      memory: the decoding state.
      capacity: positions that the state has room for.
      read_by: description of the weights that computed the state; other weights cannot continue from it.

    Raises:
      UsageError: the file cannot be written.
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
    """Reads a decoding state with one row per prompt; returns it and the positions it has room for.

    Raises:
      UsageError: the file cannot be read, belongs to another experiment, other weights or other sizes, or has another
        number of rows; or the prompts differ in length, which would need padding in the middle.
    """
    try:
        content: Any = serialization.msgpack_restore(place(path).read_bytes())
        names = ("experiment", "read_by", "capacity", "drawn", "unread", "position")
        name, reader, capacity, drawn, unread, position = (content[key] for key in names)
        leaves = [content["leaves"][str(i)] for i in range(len(content["leaves"]))]
    except OSError as error:
        raise UsageError(f"The state '{path}' cannot be read: {error.strerror or error}.") from error
    except Exception as error:  # msgpack raises various exceptions for unknown bytes
        raise UsageError(f"'{path}' is not a state written by --save_state.") from error
    rows = len(unread)
    if rows != len(prompts):
        raise UsageError(f"The state '{path}' has {rows} rows (got {len(prompts)} prompts). Give one prompt per row.")
    if len({len(prompt) for prompt in prompts}) != 1:
        raise UsageError("Prompts that continue a state must have equal lengths in tokens.")
    empty = jax.eval_shape(lambda: session.task.init_decode_state(rows, capacity))
    if name != session.name or [leaf.shape for leaf in jax.tree.leaves(empty)] != [leaf.shape for leaf in leaves]:
        raise UsageError(f"The state '{path}' of {name} does not fit {session.name}: sizes differ. Create it again.")
    if content.get("paths") != _paths(empty):
        raise UsageError(f"The state '{path}' was written in the format of another version. Create it again.")
    if reader != read_by:
        raise UsageError(
            f"The state '{path}' was computed with {reader}, but the checkpoint has {read_by}. Create it again."
        )
    state = jax.tree.unflatten(jax.tree.structure(empty), leaves)
    return Memory(state, unread, position, jnp.int32(drawn), content.get("counts")), capacity
