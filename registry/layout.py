"""A layout: the placement of every weight and of activations, and its changes."""

import dataclasses

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

    def over_positions(self, axis: str, *, with_weights: bool) -> "Layout":
        """Returns the layout with the positions of rows split over a further axis (context parallelism).

        Where an activation has blocks of a row or groups of tokens instead of positions, these are split. With weights,
        the dimensions of matrices that the axes of the batch's rows split are split over it too, except experts.
        Rows that have the axis already are unchanged.
        """
        rows = set(axes_of(self.activations["tokens_bs"][0]))
        weights, activations = dict(self.weights), dict(self.activations)
        for key, spec in activations.items():
            activations[key] = _with_axis(spec, axis, _last_dim(key, POSITIONS))
        for key, spec in weights.items() if with_weights else ():
            weights[key] = _with_axis(spec, axis, _dim_over(key, spec, rows))
        return self._with(axis, weights, activations)

    def over_stages(self, axis: str) -> "Layout":
        """Returns the layout with the rows of a batch, or its groups of tokens, split over the stages of a pipeline.

        Inside of the pipeline each stage has complete micro-batches; embedding and head are computed for a share of the
        rows on each. Stages are the outer axis, so that the rows of a stage are consecutive.
        """
        placed = lambda key, spec: _with_axis(spec, axis, _last_dim(key, ROWS), is_outer=True)
        return self._with(axis, dict(self.weights), {key: placed(key, spec) for key, spec in self.activations.items()})

    def _with(self, axis: str, weights: dict[str, P], activations: dict[str, P]) -> "Layout":
        axes = self.axes if axis in self.axes else (*self.axes, axis)
        return Layout(axes=axes, weights=Specs(**weights), activations=Specs(**activations))


# First letters of an activation, up to the dimension of rows of a batch (b), or of positions (s) or blocks (r) of a
# row; groups of tokens (g) are split in place of either.
ROWS, POSITIONS = ("b", "g", "eg"), ("bs", "br", "g", "eg")


def _last_dim(key: str, starts: tuple[str, ...]) -> int | None:
    """Returns the last dimension of the start that the letters of an activation have; None if they have none."""
    letters = key.rpartition("_")[2]
    return next((len(start) - 1 for start in starts if letters.startswith(start)), None)


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


def _with_axis(spec: P, axis: str, dim: int | None, *, is_outer: bool = False) -> P:
    if dim is None or any(axis in axes_of(entry) for entry in spec):
        return spec
    names = (axis, *axes_of(spec[dim])) if is_outer else (*axes_of(spec[dim]), axis)
    return P(*spec[:dim], names if len(names) > 1 else axis, *spec[dim + 1 :])
