"""Slots in 8 bits: errors of rounding, bytes, placement, and training as with float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from layers.specs import P
from registry.records.snapshot import weight_summary
from tasks.optimizers.precision import BLOCK, block_of, dequantize, quantize, table
from tests.support.references.models import Small, task_of, train_losses


@pytest.mark.parametrize("squares", [False, True])
def test_the_table(squares):
    """The dynamic map: 2^i values of a decade and sign, means of equal parts of it (Dettmers et al. 2022, figure 2)."""
    values = table(squares)
    assert len(values) == len(set(values)) == 256
    assert (values.min(), values.max()) == (0 if squares else -values[-2], 1)
    positive = values[(values > 0) & (values < 1)]
    decades = np.floor(np.log10(positive) + 1e-6)
    counts = [int((decades == decade).sum()) for decade in range(-7, 0)]
    assert counts == [2 ** (i + squares) for i in range(7)]
    assert positive.max() == pytest.approx(1 - 0.9 / 2 ** (7 + squares))


def test_rounding_is_to_the_nearest_value_of_each_block():
    x = np.random.default_rng(0).standard_normal((3, 512)).astype(np.float32) ** 3
    stored = quantize(jnp.asarray(x))
    assert (stored.codes.dtype, stored.codes.shape, stored.scales.shape) == (jnp.uint8, (3, 512), (3, 2))
    blocks = x.reshape(3, 2, BLOCK)
    scales = np.abs(blocks).max(-1, keepdims=True)
    nearest = np.abs(blocks[..., None] / scales[..., None] - table(False)).argmin(-1)
    expected = table(False)[nearest] * scales
    np.testing.assert_allclose(dequantize(stored), expected.reshape(x.shape), rtol=1e-6)
    assert np.abs(expected - blocks).max() / scales.max() < 0.5 * 0.9 / 64 + 0.9 / 128
    again = quantize(dequantize(stored))
    np.testing.assert_array_equal(again.codes, stored.codes)


def test_zeros_and_small_squares():
    zero = quantize(jnp.zeros((2, 64)))
    assert not np.any(dequantize(zero))
    x = jnp.array([[1.0, 1e-12, 0.0] + [0.5] * 61])
    found = np.asarray(dequantize(quantize(x, squares=True), squares=True))[0]
    assert found[0] == 1
    assert found[1] > 0
    assert found[2] == 0


def test_blocks_divide_the_last_dimension():
    assert [block_of(size) for size in (50304, 50000, 3072, 12, 251, 2 * 251)] == [192, 250, 256, 12, 251, 251]


EIGHT = {"MOMENT_DTYPE": "int8", "SECOND_MOMENT_DTYPE": "int8"}
WIDE = {"MODEL_DIM": 64, "FFN_DIM": 256, "VOCAB_SIZE": 256}


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("method", "rate", "narrow"),
    [
        ("muon", 3e-3, EIGHT),
        pytest.param("adamw", 3e-3, EIGHT, marks=SLOW),
        pytest.param("lion", 1e-4, {"MOMENT_DTYPE": "int8"}, marks=SLOW),
        pytest.param("sgd", 0.1, {"MOMENT_DTYPE": "int8"}, marks=SLOW),
    ],
)
def test_losses_are_nearly_those_of_float32(method, rate, narrow):
    knobs = {"OPTIMIZER": method, "LEARNING_RATE": rate, "SCHEDULE": "constant", "WARMUP_STEPS": 0, **WIDE}
    expected, found = train_losses(8, **knobs)[0], train_losses(8, **knobs, **narrow)[0]
    assert expected != found
    np.testing.assert_allclose(found, expected, rtol=2e-2)


def test_slots_take_a_quarter_and_are_split_like_their_weights():
    entry = Small.derive(DEVICE_MESH_SHAPE=(2, 4), **WIDE, **EIGHT)()
    plain = Small.derive(DEVICE_MESH_SHAPE=(2, 4), **WIDE)()
    rows = {row["path"]: row for row in weight_summary(entry)["weights"]}
    for row in weight_summary(plain)["weights"]:
        small, slots = rows[row["path"]]["slot_bytes_per_device"], row["slot_bytes_per_device"]
        of_layer = np.prod(row["shape"]) // (2 if "stack" in row["path"] else 1)
        assert small == slots if of_layer < 4096 else small < 0.35 * slots, row["path"]
    task = task_of(**WIDE, **EIGHT)
    table = task.weight_table()
    state = jax.eval_shape(task.optimizer.build(table).init, table.abstract["params"])
    specs = {}
    for row, leaf, spec in task.optimizer.slots(table, state):
        if row is not None and row.key == "ffn_in_mf":
            specs[leaf.dtype.name] = (leaf.shape, spec)
    assert specs == {
        "uint8": ((2, 64, 256), P(None, "data", "model")),
        "float32": ((2, 64, 1), P(None, "data", None)),
    }


@pytest.mark.parametrize("method", ["adamw", "lion", "muon", "sgd"])
@pytest.mark.parametrize("moments", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("master", [False, True])
def test_an_update_keeps_the_dtypes_of_slots_of_narrow_weights(method, moments, master):
    """Shapes alone: an update whose state has other dtypes than the one before could not be repeated."""
    knobs = {"OPTIMIZER": method, "MOMENT_DTYPE": moments, "PARAM_DTYPE": "bfloat16", "MASTER_WEIGHTS": master}
    task = task_of(**knobs)
    table = task.weight_table()
    params = table.trained(table.abstract["params"])
    optimizer = task.optimizer.build(table)
    state = jax.eval_shape(optimizer.init, params)
    wide = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32), params)
    _, after = jax.eval_shape(optimizer.update, wide, state, wide)
    types = lambda tree: [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)]
    assert types(after) == types(state)
