"""Exchanges along a mesh axis that a computation handles itself, beside axes that the compiler handles."""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax

from layers.specs import P, axes_of


def manual_axis() -> str | None:
    """The mesh axis that the computation being traced handles itself (see tasks.zero); None is none."""
    axes = jax.sharding.get_abstract_mesh().manual_axes
    assert len(axes) < 2, "one axis at a time is handled beside the compiler's"
    return axes[0] if axes else None


def manual_parts() -> int:
    """Parts of the manual axis; 1 where there is none."""
    axis = manual_axis()
    return 1 if axis is None else jax.sharding.get_abstract_mesh().shape[axis]


def summed(x: jax.Array) -> jax.Array:
    """The sum over the devices of the manual axis, of numbers that other axes do not split; `x` where there is none."""
    axis = manual_axis()
    return x if axis is None else jax.lax.psum(x, axis)


_GATHERS: contextvars.ContextVar[bool] = contextvars.ContextVar("gathers", default=False)


@contextlib.contextmanager
def gathering(layers: bool) -> Iterator[None]:
    """Inside, what is traced gathers the weights of its layers, or does not."""
    token = _GATHERS.set(layers)
    try:
        yield
    finally:
        _GATHERS.reset(token)


def layers_are_gathered() -> bool:
    """Whether the computation being traced gathers the weights of its layers."""
    return _GATHERS.get()


def only(spec: P, axis: str) -> P:
    """What `spec` says of one mesh axis."""
    return P(*[axis if axis in axes_of(entry) else None for entry in spec])


def without(spec: P, axis: str) -> P:
    """What `spec` says of all other mesh axes."""
    rest = (tuple(name for name in axes_of(entry) if name != axis) for entry in spec)
    return P(*[names if len(names) > 1 else names[0] if names else None for names in rest])


def dim_of(spec: P, axis: str) -> int | None:
    """The dimension that a mesh axis splits; None where it splits none."""
    return next((dim for dim, entry in enumerate(spec) if axis in axes_of(entry)), None)


def gather(x: jax.Array, axis: str, dim: int, spec: P) -> jax.Array:
    """All devices' parts of an array side by side along `dim`; other axes split it by `spec`."""
    return _beside(lambda x: jax.lax.all_gather(x, axis, axis=dim, tiled=True), x, axis, spec)


def scatter(x: jax.Array, axis: str, dim: int, spec: P) -> jax.Array:
    """Each device's part along `dim` of the sum over devices; other axes split it by `spec`."""
    return _beside(lambda x: jax.lax.psum_scatter(x, axis, scatter_dimension=dim, tiled=True), x, axis, spec)


def swap(x: jax.Array, axis: str, cut: int, join: int, spec: P) -> jax.Array:
    """Every device's parts along `join`, of its own part along `cut`: an all-to-all; other axes split it by `spec`."""
    exchange = functools.partial(jax.lax.all_to_all, axis_name=axis, split_axis=cut, concat_axis=join, tiled=True)
    return _beside(exchange, x, axis, spec)


def total(x: jax.Array, axis: str, spec: P) -> jax.Array:
    """The sum over devices; other axes split it by `spec`."""
    return _beside(lambda x: jax.lax.psum(x, axis), x, axis, spec)


def keep_all_but_gathered(primitive: Any, *_: Any, **__: Any) -> bool:
    """A policy of remat: what was gathered is gathered again, all else is kept."""
    return primitive.name != "all_gather"


def _beside(fn: Callable[[jax.Array], jax.Array], x: jax.Array, axis: str, spec: P) -> jax.Array:
    # The compiler would undo the splits by its own axes in front of an exchange along ours: it handles none here.
    others = {name for entry in spec for name in axes_of(entry)} - {axis}
    if not others:
        return fn(x)
    spec = without(spec, axis)
    return jax.shard_map(fn, in_specs=(spec,), out_specs=spec, axis_names=others, check_vma=False)(x)
