"""Biases that depend on the distance between query and key alone: one value per distance, laid out as a matrix."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def distances(start: Int[Array, ""] | int, queries: int, keys: int) -> Int[Array, " w"]:
    """Returns the w = queries + keys - 1 distances `query position - key position`, descending.

    Queries are at start, start + 1, ..., keys at 0, 1, ... The first is that of the last query and the first key.
    """
    return start + queries - 1 - jnp.arange(queries + keys - 1)


def diagonals(values: Float[Array, "n w"], queries: int, keys: int) -> Float[Array, "n q t"]:
    """Returns matrices of values by `distances`: along their diagonals, the first `keys` values in the last row.

    If the values are repeated and cut into rows of one entry more than their number, row i starts with value i.
    """
    width = values.shape[1]
    again = jnp.tile(values, (1, queries + 1))[:, : queries * (width + 1)]
    return again.reshape(-1, queries, width + 1)[:, ::-1, :keys]
