import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from layers.specs import P
from tasks.optimizers.adafactor import factored_dims, scale_by_adafactor
from tasks.weight_table import WeightRow
from tests.support.references.lingvo import NUMBERS


def row(shape, stacked=0):
    fields = {"path": "w", "key": "w", "dtype": "float32", "role": "hidden", "init": "", "fan_in": 1, "decay": False}
    fields |= {"stddev": 1.0, "rate": 1.0}
    specs = dict.fromkeys(("spec", "gradient_spec", "slot_spec"), P(*[None] * len(shape)))
    return WeightRow(shape=shape, used=shape[stacked:], **specs, **fields)


@pytest.mark.parametrize("name", NUMBERS["adafactor"])
def test_traces_of_the_reference(name):
    sizes, scale = name.split("_scale")
    shape = tuple(map(int, sizes.split("x")))
    index = np.arange(np.prod(shape)) + 1
    w = jnp.asarray(float(scale) * np.sin(0.37 * index), jnp.float32).reshape(shape)
    transformation = scale_by_adafactor({"w": row(shape)})
    state = transformation.init({"w": w})
    for t, expected in enumerate(NUMBERS["adafactor"][name]):
        gradient = jnp.asarray(0.01 * np.cos(0.11 * index + t), jnp.float32).reshape(shape)
        update, state = transformation.update({"w": gradient}, state, {"w": w})
        w = w - expected["lr"] * update["w"]
        np.testing.assert_allclose(w.ravel()[:4], expected["w_first4"], rtol=1e-5, atol=1e-9)
        np.testing.assert_allclose(jnp.sum(jnp.square(w)), expected["w_sumsq"], rtol=1e-5)
        names = {"v": "full", "vr": "row", "vc": "column"}
        for theirs, numbers in expected["slots"].items():
            slot = getattr(state.slots["w"], names[theirs])
            assert list(slot.shape) == numbers["shape"]
            np.testing.assert_allclose(jnp.sum(slot), numbers["sum"], rtol=1e-5)
            np.testing.assert_allclose(slot.ravel()[:2], numbers["first2"], rtol=1e-4)


@pytest.mark.parametrize("shape", [(8, 6), (6, 8), (8, 8), (3, 5, 4)])
def test_equals_optax(shape):
    keys = jax.random.split(jax.random.key(0), 4)
    w = jax.random.normal(keys[0], shape)
    ours, reference = (
        scale_by_adafactor(row(shape), min_dim=4),
        optax.chain(
            optax.scale_by_factored_rms(min_dim_size_to_factor=4),
            optax.clip_by_block_rms(1.0),
            optax.scale_by_param_block_rms(),
        ),
    )
    state, other = ours.init(w), reference.init(w)
    for key in keys[1:]:
        gradient = jax.random.normal(key, shape)
        update, state = ours.update(gradient, state, w)
        expected, other = reference.update(gradient, other, w)
        np.testing.assert_allclose(update, expected, rtol=1e-4)


def test_layers_of_a_stack_are_weights_of_their_own():
    keys = jax.random.split(jax.random.key(0), 2)
    size = jnp.array([1.0, 10.0, 0.1])[:, None, None]  # clipping and scale would mix if they reached over layers
    w, gradient = (size * jax.random.normal(key, (3, 8, 6)) for key in keys)
    stacked, single = scale_by_adafactor(row((3, 8, 6), 1), min_dim=4), scale_by_adafactor(row((8, 6)), min_dim=4)
    update, state = stacked.update(gradient, stacked.init(w), w)
    for layer in range(3):
        expected, other = single.update(gradient[layer], single.init(w[layer]), w[layer])
        np.testing.assert_allclose(update[layer], expected, rtol=1e-5)
        np.testing.assert_allclose(state.slots.row[layer], other.slots.row, rtol=1e-6)


def test_which_dimensions_are_factored():
    assert factored_dims(row((128, 256)), 128) == (1, 0)
    assert factored_dims(row((128, 128)), 128) == (0, 1)
    assert factored_dims(row((12, 300, 256), 1), 128) == (1, 2)
    assert factored_dims(row((128, 64)), 128) is None
    assert factored_dims(row((12, 512), 1), 128) is None
