"""Products with weights: their values, on one device and on a mesh, and the form in which one device computes them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from layers.weights.products import product

KEYS = jax.random.split(jax.random.key(0), 2)


def arrays(of_x, of_w):
    return jax.random.normal(KEYS[0], (2, 6, *of_x)), jax.random.normal(KEYS[1], of_w)


@pytest.mark.parametrize(
    ("of_x", "of_w", "summed", "by_rows", "equation"),
    [
        ((8,), (8, 10), 1, False, "bsm,mf->bsf"),
        ((8,), (8, 4, 3), 1, False, "bsm,mnd->bsnd"),
        ((4, 3), (4, 3, 8), 2, False, "bsnd,ndm->bsm"),
        ((8,), (10, 8), 1, True, "bsm,vm->bsv"),
    ],
)
def test_products_are_those_of_einsum(of_x, of_w, summed, by_rows, equation):
    x, w = arrays(of_x, of_w)
    expected = jnp.einsum(equation, x, w)
    compute = jax.jit(lambda x, w: product(x, w, summed, by_rows=by_rows))
    np.testing.assert_allclose(compute(x, w), expected, rtol=1e-5, atol=1e-5)
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4])
    with jax.set_mesh(mesh):
        np.testing.assert_allclose(jax.jit(compute)(x, w), expected, rtol=1e-5, atol=1e-5)


def test_on_one_device_the_gradient_of_a_weight_transposes_no_activations():
    x, w = arrays((128,), (128, 256))

    def transposes(multiply):
        objective = lambda w, x: jnp.square(multiply(x, w)).sum()
        text = jax.jit(jax.grad(objective)).lower(w, x).compile().as_text()
        return [line for line in text.splitlines() if " transpose(" in line]

    assert transposes(lambda x, w: jnp.tensordot(x, w, 1))
    assert not transposes(product)
