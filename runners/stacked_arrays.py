"""Arrays that are stacked over layers: the layers of a model in them, by path and in order."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

Shapes = Mapping[str, tuple[int, ...]]

_STACKED = re.compile(r"(.*?\bstack)/(?:stacks_(\d+)/)?block/(?:blocks_(\d+)/)?(.+)")
_SLOTS = "optimizer/"


class Place(NamedTuple):
    """The arrays of some layers: their stack in the model, and their block in a pattern over layers."""

    stack: int
    block: int


class Layer(NamedTuple):
    """A layer: its arrays, and its index along their first dimension."""

    place: Place
    index: int


class StackedArrays:
    """Arrays by path: those that are stacked over layers of a model, and those outside of layers.

    Attributes:
      shapes: the shape of each array.
      paths: the paths of an array, by its name, which is equal for all layers; by place, None outside of layers.
      repeats: the number of layers in the arrays of a place.
      layers: the layers, in the order of the model.
    """

    def __init__(self, shapes: Shapes):
        self.shapes = shapes
        self.paths: dict[str, dict[Place | None, str]] = {}
        self.repeats: dict[Place, int] = {}
        for path, shape in shapes.items():
            name, place = named(path)
            self.paths.setdefault(name, {})[place] = path
            if place is not None and not path.startswith(_SLOTS):
                self.repeats.setdefault(place, shape[0])
        self.layers: list[Layer] = []
        for stack in sorted({place.stack for place in self.repeats}):
            repeats = {place.block: number for place, number in self.repeats.items() if place.stack == stack}
            unit = [Place(stack, block) for block in range(1 + max(repeats))]  # also blocks without arrays
            self.layers += [Layer(place, index) for index in range(max(repeats.values())) for place in unit]

    def of_layer(self, name: str, place: Place | None) -> tuple[int, ...] | None:
        """Returns the shape of an array in one layer of a place; None if the place lacks it."""
        path = self.paths.get(name, {}).get(place)
        return None if path is None else self.shapes[path][place is not None :]

    def kind(self, layer: Layer) -> tuple[Any, ...]:
        """Returns names and shapes of a layer's variables."""
        kept = ((name, self.of_layer(name, layer.place)) for name in sorted(self.paths) if not name.startswith(_SLOTS))
        return tuple((name, shape) for name, shape in kept if shape is not None)


def named(path: str) -> tuple[str, Place | None]:
    """Returns the name of an array, equal for all layers, and its place; None outside of layers.

    >>> named("params/stack/stacks_1/block/blocks_2/ffn/ffn_in_mf")
    ('params/stack/block/ffn/ffn_in_mf', Place(stack=1, block=2))
    """
    found = _STACKED.fullmatch(path)
    if found is None:
        return path, None
    before, stack, block, after = found.groups()
    return f"{before}/block/{after}", Place(int(stack or 0), int(block or 0))
