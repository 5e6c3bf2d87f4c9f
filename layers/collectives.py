"""Collectives along a manual mesh axis, while the compiler handles all other axes; programs of single devices."""

import contextlib
import contextvars
import functools
from collections.abc import Callable
from typing import Any

import jax

from layers.platform import tracing_with
from layers.specs import P, axes_of

_STAGES: contextvars.ContextVar[str | None] = contextvars.ContextVar("stages", default=None)


def staged(axis: str) -> contextlib.AbstractContextManager[None]:
    """Declares, for the code inside, that devices of a manual axis have other layers, not other rows of the batch."""
    return tracing_with(_STAGES, axis)


def manual_axis() -> str | None:
    """Returns the manual axis that splits the batch of the computation being traced (see tasks.zero), or None."""
    axes = [axis for axis in jax.sharding.get_abstract_mesh().manual_axes if axis != _STAGES.get()]
    assert len(axes) < 2, "at most one mesh axis is manual"
    return axes[0] if axes else None


def manual_parts() -> int:
    """Returns the size of the manual axis; 1 if there is none."""
    axis = manual_axis()
    return 1 if axis is None else jax.sharding.get_abstract_mesh().shape[axis]


def all_reduce_unsharded(x: jax.Array) -> jax.Array:
    """All-reduce over the manual axis of numbers that no other axis splits; returns `x` if no axis is manual."""
    axis = manual_axis()
    return x if axis is None else jax.lax.psum(x, axis)


_GATHERS: contextvars.ContextVar[bool] = contextvars.ContextVar("gathers", default=False)


def gathering(layers: bool) -> contextlib.AbstractContextManager[None]:
    """Sets, for the code inside, whether traced layers gather their weights."""
    return tracing_with(_GATHERS, layers)


def layers_are_gathered() -> bool:
    """Returns whether layers gather their weights in the computation being traced."""
    return _GATHERS.get()


def on_each_device(local: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    """Returns a function that runs `local` on each device with its parts of the arguments.

    The compiler splits nothing inside. Axes that are manual already are not in the specs; without others it is `local`.
    """
    mesh = jax.sharding.get_abstract_mesh()
    axes = {axis for axis in mesh.axis_names if axis not in mesh.manual_axes}
    if not axes:
        return local
    return jax.shard_map(local, in_specs=in_specs, out_specs=out_specs, axis_names=axes, check_vma=False)


def restricted_to(spec: P, axis: str) -> P:
    """Returns `spec` restricted to one mesh axis."""
    return P(*[axis if axis in axes_of(entry) else None for entry in spec])


def without(spec: P, axis: str) -> P:
    """Returns `spec` without one mesh axis."""
    rest = (tuple(name for name in axes_of(entry) if name != axis) for entry in spec)
    return P(*[names if len(names) > 1 else names[0] if names else None for names in rest])


def dim_of(spec: P, axis: str) -> int | None:
    """Returns the dimension that a mesh axis splits; None if it splits none."""
    return next((dim for dim, entry in enumerate(spec) if axis in axes_of(entry)), None)


def all_gather(x: jax.Array, axis: str, dim: int, spec: P) -> jax.Array:
    """All-gather: concatenates all devices' shards along `dim`; other axes split the array by `spec`."""
    return _with_other_axes_manual(lambda x: jax.lax.all_gather(x, axis, axis=dim, tiled=True), x, axis, spec)


def reduce_scatter(x: jax.Array, axis: str, dim: int, spec: P) -> jax.Array:
    """Reduce-scatter: sums over devices and returns each device's shard along `dim`; other axes split it by `spec`."""
    exchange = functools.partial(jax.lax.psum_scatter, axis_name=axis, scatter_dimension=dim, tiled=True)
    return _with_other_axes_manual(exchange, x, axis, spec)


def all_to_all(x: jax.Array, axis: str, split_dim: int, concat_dim: int, spec: P) -> jax.Array:
    """All-to-all: splits a device's shard along `split_dim`, and concatenates the received parts along `concat_dim`.

    Other axes split the array by `spec`.
    """
    exchange = functools.partial(
        jax.lax.all_to_all, axis_name=axis, split_axis=split_dim, concat_axis=concat_dim, tiled=True
    )
    return _with_other_axes_manual(exchange, x, axis, spec)


def all_reduce(x: jax.Array, axis: str, spec: P) -> jax.Array:
    """All-reduce: returns the sum over devices; other axes split the array by `spec`."""
    return _with_other_axes_manual(lambda x: jax.lax.psum(x, axis), x, axis, spec)


def keep_all_but_gathered(primitive: Any, *_: Any, **__: Any) -> bool:
    """Rematerialization policy: gathers weights again in the backward pass, saves everything else."""
    return primitive.name != "all_gather"


def _with_other_axes_manual(fn: Callable[[jax.Array], jax.Array], x: jax.Array, axis: str, spec: P) -> jax.Array:
    # The compiler would remove the splits by its own axes before an exchange along ours: here it handles none of them.
    for manual in {axis, *jax.sharding.get_abstract_mesh().manual_axes}:
        spec = without(spec, manual)
    others = {name for entry in spec for name in axes_of(entry)}
    if not others:
        return fn(x)
    return jax.shard_map(fn, in_specs=(spec,), out_specs=spec, axis_names=others, check_vma=False)(x)
