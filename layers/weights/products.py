"""Matrix products of activations and weights, in the form that XLA computes fastest."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from layers.platform import has_several_devices

FEW_TOKENS = 15  # those of a pass over drafted tokens; prompts and training rows have more


def product(
    x: Float[Array, "b s ..."],
    w: jax.Array,
    summed: int = 1,
    *,
    by_rows: bool = False,
    preferred_element_type: DTypeLike | None = None,
) -> Float[Array, "b s ..."]:
    """Returns `x` times a weight: the sum over the last `summed` dimensions of `x` and the first ones of the weight.

    `by_rows` sums over the last dimension of a matrix instead: a product with each of its rows. On one device the
    tokens of all rows are one dimension of the product, and so are the dimensions that it sums over: the gradient of
    the weight then sums over one dimension, where XLA transposes both factors of a sum over two. On several
    devices every dimension is kept: merging dimensions that are split would gather them, and a gathered weight of
    another shape would be stored for the backward pass, which gathers weights again.
    """
    kept = x.ndim - summed
    if has_several_devices():
        axes = tuple(range(kept, x.ndim)), (w.ndim - 1,) if by_rows else tuple(range(summed))
        return jnp.tensordot(x, w, axes, preferred_element_type=preferred_element_type)
    inner = math.prod(x.shape[kept:])
    rows, matrix = x.reshape(-1, inner), w if by_rows else w.reshape(inner, -1)
    y = jnp.tensordot(rows, matrix, ((1,), (int(by_rows),)), preferred_element_type=preferred_element_type)
    return y.reshape(*x.shape[:kept], *(w.shape[:-1] if by_rows else w.shape[summed:]))


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
            together = product(x, jnp.stack([weights[i] for i in places], axis=1))
            products |= {i: together[:, :, n] for n, i in enumerate(places)}
        else:
            products |= {i: product(x, weights[i]) for i in places}
    return [products[i] for i in range(len(weights))]
