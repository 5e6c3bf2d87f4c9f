"""Muon: momentum whose singular values are made equal, for each matrix of a weight."""

import math
from typing import Any, Literal, NamedTuple

import jax
import optax
from optax import contrib

from tasks.optimizers.precision import SlotDtype, store_moments
from tasks.weight_table import WeightRow

BATCH_LETTERS = "nke"  # heads, heads of keys and values, experts: each has a matrix of its own
MuonScale = Literal["rms", "shape", "spectral"]


class Matrix(NamedTuple):
    """The dimensions of a weight that are a matrix; it has one for every index of its other dimensions."""

    inputs: int  # the dimension of the inputs
    outputs: int
    shape: tuple[int, int]  # their sizes
    fan_in: int  # inputs summed into one output, those of other matrices (heads) included

    def scale(self, kind: MuonScale) -> float:
        """Returns the factor on an update of singular values near 1.

        With fan-in i and fan-out o of the matrix: "rms" 0.2 sqrt(max(i, o)), so that elements have a root mean square
        of 0.2 as those of Adam (Liu et al. 2025, arXiv 2502.16982, equation 4). "shape" sqrt(max(1, o / i)) (Jordan et
        al. 2024). "spectral" sqrt(o / i) times i / fan_in, so that outputs change equally at every width (Yang et al.
        2023, arXiv 2310.17813, condition 1); of a table of embeddings sqrt(max(i, o)), so that elements change by 1.
        """
        inputs, outputs = self.shape
        is_lookup = self.fan_in < inputs
        factors = {
            "rms": 0.2 * math.sqrt(max(inputs, outputs)),
            "shape": math.sqrt(max(1, outputs / inputs)),
            "spectral": math.sqrt(max(inputs, outputs) if is_lookup else inputs * outputs / self.fan_in**2),
        }
        return factors[kind]


def matrix_of(row: WeightRow) -> Matrix | None:
    """Returns the matrix of a weight, from the letters of its dimensions; None for vectors and other shapes.

    `query_mnd` has a matrix m x d for each head n, `expert_in_emf` one for each expert e, `router_me` one of m x e.
    """
    dims = list(enumerate(row.letters, start=row.stacked))
    inner = [(dim, letter) for dim, letter in dims if letter not in BATCH_LETTERS]
    chosen = dims if len(dims) == 2 else inner
    is_vector = row.role in ("scale", "bias") or len(row.shape) - row.stacked != len(dims)
    if is_vector or len(chosen) != 2:
        return None
    (inputs, _), (outputs, _) = chosen
    return Matrix(inputs, outputs, (row.used[inputs - row.stacked], row.used[outputs - row.stacked]), row.fan_in)


def scale_by_muon(rows: Any, beta: float, scale: MuonScale, dtype: SlotDtype) -> list[optax.GradientTransformation]:
    """Muon (Jordan et al. 2024) with Nesterov's momentum and five Newton-Schulz steps, for the weights of `rows`.

    Args:
      rows: the WeightRows, in the tree structure of the weights; each has a matrix.
      beta: decay of the momentum.
      scale: see Matrix.scale.
      dtype: of the stored momentum.
    """
    matrices = jax.tree.map(matrix_of, rows)
    is_matrix = lambda node: isinstance(node, Matrix)
    dims = lambda matrix: contrib.MuonDimensionNumbers(matrix.inputs, matrix.outputs)
    numbers = jax.tree.map(dims, matrices, is_leaf=is_matrix)
    factors = jax.tree.map(lambda matrix: matrix.scale(scale), matrices, is_leaf=is_matrix)
    times = optax.stateless(lambda updates, _: jax.tree.map(lambda u, factor: u * factor, updates, factors))
    return [
        store_moments(contrib.scale_by_muon(beta=beta, weight_dimension_numbers=numbers), {"mu": dtype}, rows),
        times,
    ]
