import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from layers.specs import P, Specs
from layers.weights.initializers import Constant
from layers.weights.weight import weight

CALLS = []


class Counted(Constant):
    def __call__(self, *arguments):
        CALLS.append(arguments)
        return super().__call__(*arguments)


class Scaled(nn.Module):
    specs: Specs = Specs(scale_m=P(None))
    param_dtype: str = "float32"

    @nn.compact
    def __call__(self, x):
        return x * weight(self, "scale_m", x.shape[-1:], init=Counted(value=2.0), role="scale")


def test_a_stored_weight_is_read_without_its_initializer():
    CALLS.clear()
    x, layer = jnp.ones((2, 3)), Scaled()
    variables = nn.meta.unbox(layer.init(jax.random.key(0), x))
    assert len(CALLS) == 1
    np.testing.assert_array_equal(layer.apply(variables, x), np.full((2, 3), 2.0))
    assert len(CALLS) == 1
