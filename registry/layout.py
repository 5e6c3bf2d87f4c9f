"""A layout: the placement of every weight and of activations, and its changes."""

import dataclasses

from layers.errors import UsageError
from layers.specs import P, Specs, axes_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """Placement of all weights and of activations; an activation without a row is placed by the compiler."""

    axes: tuple[str, ...]  # the mesh axes that it names
    weights: Specs
    activations: Specs

    def but(self, *axes: str, weights: Specs | None = None, activations: Specs | None = None) -> "Layout":
        """Returns the layout on a mesh with these further axes and with these rows."""
        return Layout(
            axes=(*self.axes, *axes),
            weights=self.weights | (weights or Specs()),
            activations=self.activations | (activations or Specs()),
        )

    def over_positions(self, axis: str, mesh_axes: tuple[str, ...], *, with_weights: bool) -> "Layout":
        """Returns the layout with the positions of rows split over a further axis (context parallelism).

        Where an activation has blocks of a row or groups of tokens instead of positions, these are split. With weights,
        the dimensions of matrices that the axes of the batch's rows split are split over it too, except experts.
        Rows that have the axis already are unchanged.

        Raises:
          UsageError: the mesh lacks the axis.
        """
        if axis not in mesh_axes:
            wanted = ",".join((mesh_axes[0], axis, *mesh_axes[1:]))
            raise UsageError(
                f"SEQUENCE_AXIS = {axis} is not an axis of the mesh (got MESH_AXES = {mesh_axes}). Set "
                f"MESH_AXES={wanted} and a DEVICE_MESH_SHAPE of as many sizes."
            )
        rows = set(axes_of(self.activations["tokens_bs"][0]))
        weights, activations = dict(self.weights), dict(self.activations)
        for key, spec in activations.items():
            activations[key] = _with_axis(spec, axis, _position_dim(key))
        for key, spec in weights.items() if with_weights else ():
            weights[key] = _with_axis(spec, axis, _dim_over(key, spec, rows))
        axes = self.axes if axis in self.axes else (*self.axes, axis)
        return Layout(axes=axes, weights=Specs(**weights), activations=Specs(**activations))


def _position_dim(key: str) -> int | None:
    """Returns the dimension of positions, of blocks of a row (r) or of groups of tokens (g) in an activation."""
    letters = key.rpartition("_")[2]
    return next((len(start) - 1 for start in ("bs", "br", "g", "eg") if letters.startswith(start)), None)


def _dim_over(key: str, spec: P, axes: set[str]) -> int | None:
    """Returns the dimension of a matrix that one of the axes splits, and that may take another; None if there is none.

    Experts may not, nor tables that are looked up by token (v) or position (t): the compiler would replicate the rows
    that are found before it places them.
    """
    letters = key.rpartition("_")[2]
    if letters[:1] in ("v", "t"):
        return None
    split = [dim for dim, entry in enumerate(spec) if axes & set(axes_of(entry)) and letters[dim] != "e"]
    return split[0] if split else None


def _with_axis(spec: P, axis: str, dim: int | None) -> P:
    if dim is None or any(axis in axes_of(entry) for entry in spec):
        return spec
    names = (*axes_of(spec[dim]), axis)
    return P(*spec[:dim], names if len(names) > 1 else axis, *spec[dim + 1 :])
