"""Auxiliary outputs of layers: terms of the objective, metrics, updates of state, and watched activations."""

from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import struct, traverse_util
from jaxtyping import Array, Float, Int

from layers.remat import named
from layers.specs import constrain

LOSSES = "losses"  # collection of terms that the task adds to its objective
OVERHEAD = "overhead"  # named scope of products that only move data; not counted as model work (see runners.flops)
METRICS = "metrics"  # collection of numbers that the task averages over layers and logs
WATCHED = "watched"  # collection of activations by name, for inspecting a model
CHECKED = "checked"  # collection of the RowSummary of each watched output of PARTS
UPDATES = "updates"  # collection of updates of state, each under the name of the collection that it changes

# Watched outputs of a model and its blocks, in the order of the forward pass, and their names in messages.
PARTS = {
    "embedded": "the embedding",
    "mixer_in": "the norm before the mixer",
    "mixer_out": "the mixer",
    "ffn_in": "the norm before the feed-forward layer",
    "ffn_out": "the feed-forward layer",
    "residual_bsm": "the residual sum",
    "features": "the final norm",
}


class RowSummary(struct.PyTreeNode):
    """What is known of an array by row: the first position that is not finite, and the largest absolute value."""

    first: Int[Array, "... b"]  # -1 if the row is finite
    largest: Float[Array, "... b"]  # of the finite elements

    @classmethod
    def of(cls, x: Float[Array, "b s ..."]) -> "RowSummary":
        """Returns the summary of an array."""
        is_bad, inner = ~jnp.isfinite(x), tuple(range(1, x.ndim))
        bad_bs = jnp.any(is_bad, axis=inner[1:])
        first = jnp.where(jnp.any(bad_bs, axis=1), jnp.argmax(bad_bs, axis=1), -1)
        largest = jnp.max(jnp.where(is_bad, 0, jnp.abs(x)), axis=inner)
        return cls(first, largest.astype(jnp.float32))


@runtime_checkable
class Update(Protocol):
    """A batch's update of a module's weights without gradient; updates of parts of a batch add up with `+`."""

    def apply(self, weights: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Returns the module's weights after the batch."""
        ...


def add_loss(module: Any, name: str, value: jax.Array) -> None:
    """Adds the scalar `value`, its factor included, to the objective; dropped if the caller does not collect LOSSES."""
    if not module.is_initializing():
        module.sow(LOSSES, name, value, reduce_fn=lambda total, new: total + new, init_fn=lambda: 0.0)


BY_LAYER = "_by_layer"  # end of the names of metrics that are logged for each layer


def add_metric(module: Any, name: str, value: jax.Array, *, by_layer: bool = False) -> None:
    """Reports the scalar `value` under `name`; dropped if the caller does not collect METRICS.

    Metrics are averaged over layers; `by_layer` also reports the value of each layer.
    """
    if not module.is_initializing():
        for key in (name, f"{name}{BY_LAYER}") if by_layer else (name,):
            module.sow(METRICS, key, jax.lax.stop_gradient(value), reduce_fn=lambda _, new: new, init_fn=lambda: 0.0)


def watch(module: Any, name: str, x: jax.Array) -> jax.Array:
    """Returns `x`; records it under `name` if the caller collects WATCHED or CHECKED, at no cost otherwise.

    Rematerialization policies that save by names know it by `name` (layers.remat).
    """
    x = named(x, name)
    if not module.is_initializing():
        module.sow(WATCHED, name, x, reduce_fn=lambda _, new: new, init_fn=lambda: 0.0)
        if name in PARTS:
            check(module, name, x)
    return x


def check(module: Any, name: str, x: jax.Array) -> None:
    """Records the RowSummary of `x` under `name`, in PARTS, if the caller collects CHECKED; no cost otherwise."""
    if module.is_mutable_collection(CHECKED) and not module.is_initializing():
        summary = RowSummary.of(jax.lax.stop_gradient(x))
        module.sow(CHECKED, name, summary, reduce_fn=lambda _, new: new, init_fn=lambda: 0.0)


def place(module: Any, key: str, x: jax.Array) -> jax.Array:
    """Returns the activation `x`, placed by `module.activations[key]` and watched under that name."""
    return watch(module, key, constrain(x, module.activations, key))


def add_update(module: Any, collection: str, update: Update) -> None:
    """Requests `update` of the module's weights in `collection`; dropped if the caller does not collect UPDATES."""
    if not module.is_initializing():
        module.sow(UPDATES, collection, update, reduce_fn=lambda _, new: new, init_fn=lambda: None)


def add_updates(some: Any, more: Any) -> Any:
    """Returns the sum of the updates of two parts of a batch."""
    return jax.tree.map(lambda a, b: a + b, some, more, is_leaf=lambda x: hasattr(x, "apply"))


def apply_updates(variables: dict[str, Any], updates: Any) -> dict[str, Any]:
    """Returns the variables after the updates that layers requested."""
    flat: Any = traverse_util.flatten_dict(updates, is_leaf=lambda _, x: hasattr(x, "apply"))
    state = {name: traverse_util.flatten_dict(tree) for name, tree in variables.items()}
    for (*path, collection), update in flat.items():
        owned = {key[-1]: leaf for key, leaf in state[collection].items() if key[:-1] == tuple(path)}
        state[collection].update({(*path, name): leaf for name, leaf in update.apply(owned).items()})
    return {name: traverse_util.unflatten_dict(tree) for name, tree in state.items()}
