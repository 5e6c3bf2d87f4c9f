"""Creation of weights: each is boxed with its row of the weight table."""

import functools
import math
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from flax.core import meta

from layers.collectives import all_gather, manual_axis, reduce_scatter
from layers.specs import P
from layers.weights.initializers import Initializer

Role = Literal["embedding", "hidden", "output", "scale", "bias", "state"]
"""Role of a weight. `embedding`: looked up by token or position. `hidden`: matrix between hidden layers.
`output`: hidden to vocabulary. `scale`, `bias`: vectors. `state`: not trained by gradient (codebook averages)."""

ROLES: tuple[Role, ...] = ("embedding", "hidden", "output", "scale", "bias", "state")


GRADIENT = "gradient"
"""Collection of gradient sinks: if it has an array under a weight's name, the weight's gradient goes to that array,
in its dtype, instead of to the weight. A layer that computes in that dtype reads the weight in it."""


class Weight(struct.PyTreeNode, meta.AxisMetadata):
    """A weight boxed with its row: its role, initial values and placement."""

    value: Any
    key: str = struct.field(pytree_node=False)  # its name in the experiment's WEIGHTS
    spec: P = struct.field(pytree_node=False)  # one entry per dimension
    role: Role = struct.field(pytree_node=False)
    init: str = struct.field(pytree_node=False)  # the initializer as text
    stddev: float = struct.field(pytree_node=False)  # standard deviation of the initial values
    fan_in: int = struct.field(pytree_node=False)  # inputs summed into one output
    used: tuple[int, ...] = struct.field(pytree_node=False)  # shape without padding, of one layer of a stack

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
    """Creates (or reads) the weight `key` of `module` in its `param_dtype`, placed by `module.specs[key]`.

    Args:
      module: the Linen module that owns the weight; has fields `specs` and `param_dtype`.
      key: name of the weight, ending in one letter per dimension (`query_mnd`).
      shape: sizes of those dimensions.
      init: the initializer.
      role: its role, which determines learning-rate scale and weight decay.
      fan_in: inputs summed into one output; by default the product of all dimensions but the last.
      collection: "params" for weights trained by gradient, any other name for state that is not.
      used: the part of `shape` that is not padding; None is all of it.
      dtype: the dtype that the layer computes with it in; None is the module's `dtype`. A weight whose gradient is
        summed by a lookup needs float32, because sums of many small numbers stall in bfloat16.

    Raises:
      SpecError: `module.specs` has no row for `key`.
    """
    spec = module.specs.lookup(key, type(module).__name__)
    fan_in = math.prod(shape[:-1]) if fan_in is None else fan_in

    def make(rng: jax.Array) -> Weight:
        # State holds sums of many small numbers.
        value = init(rng, shape, module.param_dtype if collection == "params" else "float32", fan_in)
        row: Any = {"key": key, "spec": spec, "role": role, "fan_in": fan_in}
        row |= {"init": str(init), "stddev": init.deviation(fan_in)}
        return Weight(value, used=shape if used is None else used, **row)

    if collection == "params":
        gradient_sink = module.get_variable(GRADIENT, key) if module.has_variable(GRADIENT, key) else None
        stored = module.get_variable("params", key) if module.has_variable("params", key) else None
        if stored is None:
            return module.param(key, make)
        if gradient_sink is None and stored.shape == shape:
            return stored  # module.param would trace `make` to compare the same shapes
        target = dtype or str(getattr(module, "dtype", "float32"))
        is_converted = role in ("hidden", "output") or (gradient_sink is not None and target == gradient_sink.dtype)
        read: Any = _read_with_sink(
            stored,
            gradient_sink,
            _Reading(shape, spec, target if is_converted else stored.dtype.name, manual_axis()),
        )
        return read
    return module.variable(collection, key, lambda: make(module.make_rng("params"))).value


class _Reading(NamedTuple):
    """Parameters of reading a weight."""

    shape: tuple[int, ...]  # full
    spec: P
    dtype: str
    axis: str | None  # the manual axis that splits the batch, and may split the weight

    def sharded(self, part: tuple[int, ...]) -> tuple[str, int] | None:
        """Returns the axis and the dimension that it splits, of a weight of which a device has this part."""
        dim = next((dim for dim, (a, b) in enumerate(zip(part, self.shape, strict=True)) if a != b), None)
        if dim is None:
            return None
        assert self.axis is not None, "weights are partial only inside tasks.zero"
        return self.axis, dim


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _read_with_sink(stored: jax.Array, gradient_sink: jax.Array | None, reading: _Reading) -> jax.Array:
    """Returns the full weight in the reading's dtype; its cotangent goes to `gradient_sink`.

    If the computation handles a mesh axis manually, a device stores its part of a weight, which is gathered, or its
    part of the gradient, which is reduce-scattered: at the place of use, so that only this weight is in memory at full
    size.
    """
    del gradient_sink
    return _full_weight(stored, reading)


def _full_weight(stored: jax.Array, reading: _Reading) -> jax.Array:
    # Gathered in the narrower dtype, so that the backward pass repeats only the gather.
    value = _to_bfloat16(stored) if (stored.dtype, reading.dtype) == (jnp.float32, "bfloat16") else stored
    value = value.astype(reading.dtype)
    split = reading.sharded(stored.shape)
    return value if split is None else all_gather(value, *split, reading.spec)


def _forward(stored: jax.Array, gradient_sink: jax.Array | None, reading: _Reading) -> tuple[jax.Array, Any]:
    # The backward pass needs only the shape and dtype of `gradient_sink`.
    sink = None if gradient_sink is None else jnp.zeros((0, *gradient_sink.shape), gradient_sink.dtype)
    return _full_weight(stored, reading), sink


def _backward(reading: _Reading, sink: jax.Array | None, cotangent: jax.Array) -> tuple[None, jax.Array | None]:
    if sink is None:
        return None, None
    split = reading.sharded(sink.shape[1:])
    if split is None:
        return None, cotangent.astype(sink.dtype)
    # Sums of many numbers stall in bfloat16.
    summed = reduce_scatter(cotangent.astype(jnp.float32), *split, reading.spec)
    return None, summed.astype(sink.dtype)


_read_with_sink.defvjp(_forward, _backward)


def _to_bfloat16(x: jax.Array) -> jax.Array:
    """Converts float32 to bfloat16, rounding to nearest even, in integer arithmetic.

    The TPU compiler moves a plain conversion inside a scan over layers out of the scan, and then keeps a bfloat16 copy
    of all layers in addition to the weights: as much memory as the gradient in bfloat16.
    """
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    narrow = jax.lax.bitcast_convert_type(rounded.astype(jnp.uint16), jnp.bfloat16)
    return jnp.where(jnp.isnan(x), jnp.bfloat16(jnp.nan), narrow)
