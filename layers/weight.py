"""The one helper that makes weights: each carries its row of the weight table from birth."""

import functools
import math
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from flax.core import meta

from layers.initializers import Initializer
from layers.specs import P

Role = Literal["embedding", "hidden", "output", "scale", "bias", "state"]
"""What a weight is for. `embedding`: looked up by token or position. `hidden`: matrix between hidden layers.
`output`: hidden to vocabulary. `scale`, `bias`: vectors. `state`: not trained by gradient (codebook averages)."""

ROLES: tuple[Role, ...] = ("embedding", "hidden", "output", "scale", "bias", "state")


GRADIENT = "gradient"
"""Collection of stand-ins: where it has an array under a weight's name, the weight's gradient goes to that array, in
its dtype, and none to the weight. A layer that computes in that dtype is handed the weight in it."""


class Weight(struct.PyTreeNode, meta.AxisMetadata):
    """A weight boxed with its row: what it is for and where it lives."""

    value: Any
    key: str = struct.field(pytree_node=False)  # its name in the experiment's WEIGHTS
    spec: P = struct.field(pytree_node=False)  # one entry per dimension
    role: Role = struct.field(pytree_node=False)
    init: str = struct.field(pytree_node=False)  # the initializer, in words
    stddev: float = struct.field(pytree_node=False)  # standard deviation of what it draws
    fan_in: int = struct.field(pytree_node=False)  # inputs summed into one output
    used: tuple[int, ...] = struct.field(pytree_node=False)  # its shape without padding, one layer of a stack

    def unbox(self) -> Any:
        return self.value

    def replace_boxed(self, val: Any) -> "Weight":
        return self.replace(value=val)

    def add_axis(self, index: int, params: dict[Any, Any]) -> "Weight":
        entries = list(self.spec)
        entries.insert(index, params.get(nn.PARTITION_NAME))
        return self.replace(spec=P(*entries))

    def remove_axis(self, index: int, params: dict[Any, Any]) -> "Weight":
        entries = list(self.spec)
        del entries[index]
        return self.replace(spec=P(*entries))


def weight(
    module: Any,
    key: str,
    shape: tuple[int, ...],
    *,
    init: Initializer,
    role: Role,
    fan_in: int | None = None,
    collection: str = "params",
    used: tuple[int, ...] | None = None,
    dtype: str | None = None,
) -> jax.Array:
    """Makes (or reads) the weight `key` of `module` in its `param_dtype`, placed by `module.specs[key]`.

    Args:
      module: the Linen module that owns the weight; has fields `specs` and `param_dtype`.
      key: name of the weight, ending in one letter per dimension (`query_mnd`).
      shape: sizes of those dimensions.
      init: how it is drawn.
      role: what it is for; learning-rate scale and decay follow from it.
      fan_in: inputs summed into one output; by default all dimensions but the last.
      collection: "params" for weights trained by gradient, any other name for state that is not.
      used: the part of `shape` that is not padding; None is all of it.
      dtype: what the layer computes with it in; None is the module's `dtype`. A weight whose gradient is summed by a
        lookup says float32 here, for sums of many small numbers stall in bfloat16.

    Raises:
      SpecError: `module.specs` has no row for `key`.
    """
    spec = module.specs.lookup(key, type(module).__name__)
    fan_in = math.prod(shape[:-1]) if fan_in is None else fan_in

    def make(rng: jax.Array) -> Weight:
        value = init(rng, shape, module.param_dtype, fan_in)
        row: Any = {"key": key, "spec": spec, "role": role, "fan_in": fan_in}
        row |= {"init": str(init), "stddev": init.deviation(fan_in)}
        return Weight(value, used=shape if used is None else used, **row)

    if collection == "params":
        value = module.param(key, make)
        if module.has_variable(GRADIENT, key):
            stand_in = module.get_variable(GRADIENT, key)
            dtype = dtype or getattr(module, "dtype", "float32")
            read: Any = _take_gradient(value, stand_in, dtype if dtype == stand_in.dtype else value.dtype.name)
            return read
        return value
    return module.variable(collection, key, lambda: make(module.make_rng("params"))).value


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _take_gradient(value: jax.Array, stand_in: jax.Array, dtype: str) -> jax.Array:
    """`value` in `dtype`; its cotangent goes to `stand_in`."""
    del stand_in
    return _to_bfloat16(value) if (value.dtype, dtype) == (jnp.float32, "bfloat16") else value.astype(dtype)


def _forward(value: jax.Array, stand_in: jax.Array, dtype: str) -> tuple[jax.Array, jax.Array]:
    return _take_gradient(value, stand_in, dtype), jnp.zeros(0, stand_in.dtype)  # the way back needs its dtype alone


def _backward(dtype: str, kept: jax.Array, cotangent: jax.Array) -> tuple[None, jax.Array]:
    del dtype
    return None, cotangent.astype(kept.dtype)


_take_gradient.defvjp(_forward, _backward)


def _to_bfloat16(x: jax.Array) -> jax.Array:
    """float32 to bfloat16, rounding to the nearest and to even, in integer arithmetic.

    A plain conversion inside a scan over layers is moved out of it by the TPU compiler, which then keeps a bfloat16
    copy of the whole stack beside the weights: as much memory as the gradient in bfloat16.
    """
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    narrow = jax.lax.bitcast_convert_type(rounded.astype(jnp.uint16), jnp.bfloat16)
    return jnp.where(jnp.isnan(x), jnp.bfloat16(jnp.nan), narrow)
