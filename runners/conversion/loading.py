"""Weights of files on the devices of a mesh, without a copy of the model in host memory."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import traverse_util
from jax.sharding import NamedSharding

from layers.specs import P
from runners.conversion.renaming import Layout, Slot
from runners.conversion.tensors import Tensor
from runners.session import Session
from tasks.weight_table import WeightRow


def loaded(session: Session, layout: Layout, tensors: Mapping[str, Tensor]) -> Any:
    """Returns the experiment's variables with the values of a file, placed on the session's mesh.

    Tensors are read one after another, and each is sent to the devices before the next one is read.

    Args:
      session: the session, inside `placed()`.
      layout: the slots of its weights.
      tensors: the tensors of the file by plain key, with the shapes of the slots.
    """
    shardings: Any = traverse_util.flatten_dict(session.abstract.state_shardings.variables, sep="/")
    flat = {path: _array(layout.rows[path], slots, tensors, shardings[path]) for path, slots in layout.by_row().items()}
    return traverse_util.unflatten_dict(flat, sep="/")


def _array(row: WeightRow, slots: Sequence[Slot], tensors: Mapping[str, Tensor], sharding: NamedSharding) -> jax.Array:
    read = lambda slot: slot.of_file(tensors[slot.key].read())
    if not slots[0].index:
        return jax.device_put(read(slots[0]), sharding)
    array = _zeros(row.shape, row.dtype, sharding)
    of_slice = NamedSharding(sharding.mesh, P(*sharding.spec[len(slots[0].index) :]))
    for slot in slots:
        # Waiting keeps the host's copy of one slice alive at a time.
        values = jax.device_put(read(slot), of_slice)
        array = jax.block_until_ready(_with_slice(array, values, slot.index, sharding))
    return array


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _zeros(shape: tuple[int, ...], dtype: str, sharding: NamedSharding) -> jax.Array:
    return jax.lax.with_sharding_constraint(jnp.zeros(shape, dtype), sharding)


@functools.partial(jax.jit, static_argnums=3, donate_argnums=0)
def _with_slice(array: jax.Array, values: jax.Array, index: tuple[int, ...], sharding: NamedSharding) -> jax.Array:
    """Returns the array with the values at an index of its first dimensions, in the memory of the old one."""
    return jax.lax.with_sharding_constraint(array.at[index].set(values), sharding)
