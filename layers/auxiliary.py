"""What a layer says beside its output: terms of the objective, numbers for the log, updates of state, activations."""

from typing import Any, Protocol, runtime_checkable

import jax
from flax import traverse_util

from layers.specs import constrain

LOSSES = "losses"  # collection of terms that the task adds to its objective
OVERHEAD = "overhead"  # named scope of products that move data and are no part of the model's work (see runners.flops)
METRICS = "metrics"  # collection of numbers that the task averages over layers and logs
WATCHED = "watched"  # collection of activations, each under its name, for who looks into a model
UPDATES = "updates"  # collection of updates of state, each under the name of the collection whose weights it changes


@runtime_checkable
class Update(Protocol):
    """What a batch does to a module's weights without gradient; updates of parts of a batch add up with `+`."""

    def apply(self, weights: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """The module's weights behind the batch."""
        ...


def add_loss(module: Any, name: str, value: jax.Array) -> None:
    """Adds the scalar `value`, its factor included, to the objective; lost where the caller does not collect it."""
    if not module.is_initializing():
        module.sow(LOSSES, name, value, reduce_fn=lambda total, new: total + new, init_fn=lambda: 0.0)


def add_metric(module: Any, name: str, value: jax.Array) -> None:
    """Reports the scalar `value` under `name`; lost where the caller does not collect it."""
    if not module.is_initializing():
        module.sow(METRICS, name, jax.lax.stop_gradient(value), reduce_fn=lambda _, new: new, init_fn=lambda: 0.0)


def watch(module: Any, name: str, x: jax.Array) -> jax.Array:
    """`x` itself; shown under `name` to a caller that collects WATCHED, and free for all others."""
    if not module.is_initializing():
        module.sow(WATCHED, name, x, reduce_fn=lambda _, new: new, init_fn=lambda: 0.0)
    return x


def place(module: Any, key: str, x: jax.Array) -> jax.Array:
    """The activation `x` placed by `module.activations[key]`, and watched under that name."""
    return watch(module, key, constrain(x, module.activations, key))


def add_update(module: Any, collection: str, update: Update) -> None:
    """Asks for `update` of the module's weights in `collection`; lost where the caller does not collect it."""
    if not module.is_initializing():
        module.sow(UPDATES, collection, update, reduce_fn=lambda _, new: new, init_fn=lambda: None)


def add_updates(some: Any, more: Any) -> Any:
    """The updates of two parts of a batch as those of both."""
    return jax.tree.map(lambda a, b: a + b, some, more, is_leaf=lambda x: hasattr(x, "apply"))


def apply_updates(variables: dict[str, Any], updates: Any) -> dict[str, Any]:
    """The variables with what layers asked for done to them."""
    flat: Any = traverse_util.flatten_dict(updates, is_leaf=lambda _, x: hasattr(x, "apply"))
    state = {name: traverse_util.flatten_dict(tree) for name, tree in variables.items()}
    for (*path, collection), update in flat.items():
        owned = {key[-1]: leaf for key, leaf in state[collection].items() if key[:-1] == tuple(path)}
        state[collection].update({(*path, name): leaf for name, leaf in update.apply(owned).items()})
    return {name: traverse_util.unflatten_dict(tree) for name, tree in state.items()}
