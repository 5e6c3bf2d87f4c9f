"""Growth in depth: the layer of another run that each layer of a new one begins with."""

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from layers.errors import UsageError
from runners.stacked_arrays import Layer, Place, StackedArrays, named


def sources(old: Sequence[Hashable], new: Sequence[Hashable]) -> list[int] | None:
    """Returns the old layer of each new one; None if there is none of its kind, or more old than new ones of a kind.

    Of the n layers of a kind, layer m takes the old layer floor(m * before / n) of that kind (Rae et al. 2021, Gopher,
    appendix G.3.3).

    >>> sources("aab", "aaaab")
    [0, 0, 1, 1, 2]
    """
    before = {kind: [i for i, other in enumerate(old) if other == kind] for kind in old}
    after = {kind: [i for i, other in enumerate(new) if other == kind] for kind in new}
    if before.keys() != after.keys() or any(len(before[kind]) > len(after[kind]) for kind in before):
        return None
    which = {kind: [m * len(before[kind]) // len(after[kind]) for m in range(len(after[kind]))] for kind in after}
    return [before[kind][which[kind][after[kind].index(i)]] for i, kind in enumerate(new)]


@dataclasses.dataclass(frozen=True)
class Growth:
    """Arrays of a new state, made of those of an old one with the same number of layers or fewer."""

    old: StackedArrays
    new: StackedArrays
    sources: list[int]  # the old layer of each new one

    @classmethod
    def of(
        cls, old: StackedArrays, new: StackedArrays, old_knobs: Mapping[str, Any], new_knobs: Mapping[str, Any]
    ) -> "Growth":
        """Returns the growth of one state to another.

        Args:
          old: arrays that have the names and, in one layer, the shapes of the new ones.
          new: arrays of the new state.
          old_knobs: knobs with patterns over the old layers, or with one value. Layers with equal arrays differ in kind
            by their places in the patterns of a knob, if those have the same form on both sides, as (512, None) and
            (1024, None) have.
          new_knobs: those of the new layers.

        Raises:
          UsageError: the old state has more layers, or lacks a layer with the arrays of a new one.
        """
        kinds = [[arrays.kind(layer) for layer in arrays.layers] for arrays in (old, new)]
        if len(old.layers) == len(new.layers):
            for number, (before, after) in enumerate(zip(*kinds, strict=True)):
                if before != after:
                    raise UsageError(
                        f"has other weights in layer {number} than here. Set patterns over layers as there."
                    )
            return cls(old, new, list(range(len(new.layers))))
        forms = [{name: _form(value) for name, value in knobs.items()} for knobs in (old_knobs, new_knobs)]
        shared = [form for name, form in forms[1].items() if forms[0].get(name) == form]
        finer = [
            [(kind, *(form[number % len(form)] for form in shared)) for number, kind in enumerate(of)] for of in kinds
        ]
        taken = sources(*finer)
        taken = sources(*kinds) if taken is None else taken
        if taken is not None:
            return cls(old, new, taken)
        if len(old.layers) > len(new.layers):
            raise UsageError(
                f"has more layers than this experiment ({len(old.layers)} there and {len(new.layers)} here). Set "
                f"NUM_LAYERS={len(old.layers)} or above."
            )
        here, there = kinds[1], kinds[0]
        unlike = lambda kind: not 0 < there.count(kind) <= here.count(kind)
        kind = next(kind for kind in (*here, *there) if unlike(kind))
        layer = f"layer {here.index(kind)} of this experiment" if kind in here else f"its layer {there.index(kind)}"
        before, after = there.count(kind), here.count(kind)
        raise UsageError(
            f"has {before} layers with the weights of {layer}, and this experiment has {after}. Set patterns "
            "over layers as there."
        )

    def __str__(self) -> str:
        """Describes the growth, with the old layer of each new one where patterns change the rule; empty if none."""
        before, after = len(self.old.layers), len(self.new.layers)
        plain = self.sources == [j * before // after for j in range(after)]
        which = "" if plain else f" ({', '.join(map(str, self.sources))})"
        return "" if before == after else f"{before} layers grown to {after}{which}"

    def needed(self, path: str) -> list[str]:
        """Returns the old paths that a new array is made of."""
        name, place = named(path)
        places = [None] if place is None else dict.fromkeys(layer.place for layer in self._taken(place))
        return [self.old.paths[name][at] for at in places]

    def array(self, path: str, old: Mapping[str, jax.Array]) -> jax.Array:
        """Returns a new array, made of the old ones."""
        name, place = named(path)
        parts = [old[part] for part in self.needed(path)]
        if place is None:
            return parts[0]
        taken = self._taken(place)
        if len(parts) > 1:
            return jnp.stack([old[self.old.paths[name][layer.place]][layer.index] for layer in taken])
        indices = [layer.index for layer in taken]
        if indices == list(range(len(parts[0]))):
            return parts[0]
        return jnp.take(parts[0], np.array(indices), axis=0)

    def _taken(self, place: Place) -> list[Layer]:
        return [
            self.old.layers[source]
            for layer, source in zip(self.new.layers, self.sources, strict=True)
            if layer.place == place
        ]


def _form(pattern: Any) -> tuple[int, ...]:
    """Returns a number for each value of a pattern, equal for equal values; one for a value that is not a pattern."""
    values = pattern if isinstance(pattern, tuple) else (pattern,)
    return tuple(values.index(value) for value in values)
