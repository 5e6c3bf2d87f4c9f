"""Several matrix products of one input as one."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def products_of(x: Float[Array, "b s m"], weights: Sequence[Float[Array, "m ..."]], joint: bool) -> list[jax.Array]:
    """`x` times each weight, as arrays (b, s, ...); if `joint`, weights of one shape by one product.

    One wide product reads the input once, and its way back sums the parts of the input's gradient by itself. Weights
    are put beside each other behind their first dimension, so that every device keeps its own part of each. That copies
    them: little beside the products of a sequence, too much beside those of a single token, whose weights stay apart.
    """
    products: dict[int, jax.Array] = {}
    for shape in dict.fromkeys(w.shape for w in weights):
        places = [i for i, w in enumerate(weights) if w.shape == shape]
        if joint and x.shape[1] > 1 and len(places) > 1:
            together = jnp.tensordot(x, jnp.stack([weights[i] for i in places], axis=1), 1)
            products |= {i: together[:, :, n] for n, i in enumerate(places)}
        else:
            products |= {i: jnp.tensordot(x, weights[i], 1) for i in places}
    return [products[i] for i in range(len(weights))]
