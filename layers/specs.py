"""Partition specs by name: the placement of every weight and activation on the device mesh."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jax import P

from layers.errors import SpecError, UsageError, did_you_mean

__all__ = ["P", "Specs", "axes_of", "constrain", "split_of"]


class Specs(Mapping[str, P]):
    """An immutable table of partition specs, keyed by role.

    A key ends in the dimension letters of the array it places: `query_mnd` is the query weight with dimensions model,
    heads, head size, so its spec has three entries.

    >>> table = Specs(ffn_in_mf=P("data", "model")) | Specs(ffn_out_fm=P("model", "data"))
    >>> table["ffn_out_fm"]
    PartitionSpec('model', 'data')
    """

    def __init__(self, **specs: P):
        for key, spec in specs.items():
            if not isinstance(spec, P):
                raise UsageError(f"Spec '{key}' must be a P(...) (got {spec!r}).")
            letters = key.rpartition("_")[2]
            if len(spec) != len(letters):
                raise SpecError(
                    f"Spec '{key}' = {show_spec(spec)} must have one entry per dimension of '{letters}' (got "
                    f"{len(spec)}). Write None for dimensions that are not split."
                )
        self._specs = dict(specs)

    def __getitem__(self, key: str) -> P:
        return self._specs[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)

    def __hash__(self) -> int:
        return hash(tuple(sorted((k, tuple(v)) for k, v in self._specs.items())))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Specs) and self._specs == other._specs

    def __or__(self, other: "Specs") -> "Specs":
        return Specs(**{**self._specs, **other._specs})

    def __repr__(self) -> str:
        return "Specs(" + ", ".join(f"{k}={show_spec(v)}" for k, v in self._specs.items()) + ")"

    def of(self, layer: Any) -> "Specs":
        """Returns the rows that `layer` (a module class) lists in its `SPECS`."""
        return Specs(**{k: v for k, v in self._specs.items() if k in layer.SPECS})

    def lookup(self, key: str, owner: str) -> P:
        """Returns the spec under `key`; raises a SpecError that names `owner` if it is missing."""
        if key not in self._specs:
            replicated = f"P({', '.join(['None'] * len(key.rpartition('_')[2]))})"
            raise SpecError(
                f"Weight '{key}' of {owner} has no partition spec. Declare it in the experiment's class, as in "
                f"`WEIGHTS: Specs = Specs({key}={replicated})`, which replicates it. {did_you_mean(key, self)}"
            )
        return self._specs[key]


def show_spec(spec: P) -> str:
    """Returns a spec as source code: `P('data', None)`."""
    return "P(" + ", ".join(repr(entry) for entry in spec) + ")"


def axes_of(entry: Any) -> tuple[str, ...]:
    """Returns the mesh axes in one entry of a spec."""
    if entry is None:
        return ()
    return entry if isinstance(entry, tuple) else (entry,)


def split_of(specs: Mapping[str, P], key: str, dim: int) -> dict[str, int]:
    """Returns the sizes of the mesh axes that split dimension `dim` of an activation, without manual axes."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or key not in specs:
        return {}
    axes = [axis for axis in axes_of(specs[key][dim]) if axis not in mesh.manual_axes]
    return {axis: mesh.shape[axis] for axis in axes if mesh.shape[axis] > 1}


def constrain(x: jax.Array, specs: Specs, key: str) -> jax.Array:
    """Constrains activation `x` to `specs[key]`; returns `x` unchanged outside a mesh or without that row."""
    mesh = jax.sharding.get_abstract_mesh()
    if key not in specs or mesh.empty:
        return x
    # Manual axes are omitted: x is already one device's part.
    remaining = [tuple(axis for axis in axes_of(entry) if axis not in mesh.manual_axes) for entry in specs[key]]
    return jax.lax.with_sharding_constraint(x, P(*[axes or None for axes in remaining]))
