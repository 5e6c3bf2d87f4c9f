import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core import meta

from layers.positions.relative_bias import RelativeBias, relative_buckets
from layers.specs import P, Specs
from layers.weights.initializers import FanIn
from tests.support.references.lingvo import NUMBERS


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_buckets_of_the_reference(dtype):
    buckets = relative_buckets(jnp.arange(140), dtype=dtype)
    assert buckets.tolist() == NUMBERS["buckets"][dtype]
    assert relative_buckets(jnp.array([-3, 10**6]), dtype=dtype).tolist() == [0, 31]


def test_both_directions_have_buckets_of_their_own():
    distance = jnp.arange(-200, 201)
    buckets = np.asarray(relative_buckets(distance, bidirectional=True))
    assert buckets[200] == 0
    assert (buckets[:200][::-1] == buckets[201:] + 16).all()
    assert buckets.max() == 31
    assert buckets[201:].tolist() == sorted(buckets[201:])


def layer(**fields):
    return RelativeBias(specs=Specs(relative_bias_nr=P(None, None)), num_heads=2, initializer=FanIn(), **fields)


def test_gradient_flows_to_the_used_buckets_alone():
    variables = meta.unbox(layer().init(jax.random.key(0), 0, 4, 4))
    gradient = jax.grad(lambda v: layer().apply(v, 0, 4, 4).sum())(variables)["params"]["relative_bias_nr"]
    np.testing.assert_allclose(gradient[0, :5], [10, 3, 2, 1, 0])


@pytest.mark.parametrize(("start", "queries", "keys"), [(0, 5, 5), (7, 1, 9), (3, 4, 8), (0, 1, 1)])
def test_every_query_and_key_have_the_bias_of_their_distance(start, queries, keys):
    module = layer(num_buckets=8, max_distance=10, bidirectional=True)
    variables = meta.unbox(module.init(jax.random.key(0), 0, 4, 4))
    distance = start + jnp.arange(queries)[:, None] - jnp.arange(keys)
    expected = variables["params"]["relative_bias_nr"][:, relative_buckets(distance, 8, 10, True)]
    np.testing.assert_array_equal(module.apply(variables, start, queries, keys), expected)
