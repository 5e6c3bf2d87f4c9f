"""Fused matrix products: several products of one input as one."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

FEW_TOKENS = 15  # those of a pass over drafted tokens; prompts and training rows have more


def products_of(x: Float[Array, "b s m"], weights: Sequence[Float[Array, "m ..."]], joint: bool) -> list[jax.Array]:
    """Returns `x` times each weight, as arrays (b, s, ...); with `joint`, weights of equal shape share one product.

    One wide product reads the input once, and its backward pass sums the parts of the input's gradient in the same
    product. Weights are stacked along a new second dimension, so that every device keeps its own part of each. Stacking
    copies them, which is cheap relative to the products of a sequence but not of FEW_TOKENS in each row, whose products
    stay separate: those of decoding.
    """
    products: dict[int, jax.Array] = {}
    for shape in dict.fromkeys(w.shape for w in weights):
        places = [i for i, w in enumerate(weights) if w.shape == shape]
        if joint and x.shape[1] > FEW_TOKENS and len(places) > 1:
            together = jnp.tensordot(x, jnp.stack([weights[i] for i in places], axis=1), 1)
            products |= {i: together[:, :, n] for n, i in enumerate(places)}
        else:
            products |= {i: jnp.tensordot(x, weights[i], 1) for i in places}
    return [products[i] for i in range(len(weights))]
