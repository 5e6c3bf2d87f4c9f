import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from layers.cross_entropy import chunked_cross_entropy, cross_entropy_sums
from layers.errors import UsageError
from runners.flops import matmul_flops

KEYS = jax.random.split(jax.random.key(0), 4)
FEATURES = jax.random.normal(KEYS[0], (2, 12, 8))
TABLE = jax.random.normal(KEYS[1], (8, 20))
TARGETS = jax.random.randint(KEYS[2], (2, 12), 0, 20)
WEIGHTS = jax.random.bernoulli(KEYS[3], 0.7, (2, 12)).astype(jnp.float32)


def objective(features, table, chunk, **options):
    sums = chunked_cross_entropy(features, lambda x: x @ table, TARGETS, WEIGHTS, chunk, **options)
    return sums.objective, sums


@pytest.mark.parametrize("chunk", [1, 3, 4, 12, 100])
@pytest.mark.parametrize("options", [{}, {"z_loss": 0.1, "label_smoothing": 0.2}])
def test_chunks_change_neither_value_nor_gradient(chunk, options):
    gradient = jax.value_and_grad(objective, argnums=(0, 1), has_aux=True)
    (_, expected), expected_gradient = gradient(FEATURES, TABLE, None, **options)
    (_, sums), chunked_gradient = gradient(FEATURES, TABLE, chunk, **options)
    for a, b in zip(
        jax.tree.leaves((sums, chunked_gradient)), jax.tree.leaves((expected, expected_gradient)), strict=True
    ):
        np.testing.assert_allclose(a, b, atol=1e-4)


def test_equals_optax():
    logits = FEATURES @ TABLE
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, TARGETS)
    sums = cross_entropy_sums(logits, TARGETS, WEIGHTS)
    np.testing.assert_allclose(sums.loss, (losses * WEIGHTS).sum(), rtol=1e-5)
    np.testing.assert_allclose(sums.objective, sums.loss)
    np.testing.assert_allclose(sums.weight, WEIGHTS.sum())
    np.testing.assert_allclose(sums.correct, ((logits.argmax(-1) == TARGETS) * WEIGHTS).sum())


def test_the_first_of_equal_logits_is_the_prediction():
    logits = jax.random.randint(KEYS[0], (2, 12, 20), 0, 3).astype(jnp.float32)
    for targets in (logits.argmax(-1), 19 - logits[..., ::-1].argmax(-1), TARGETS):  # the first, the last, any
        expected = ((logits.argmax(-1) == targets) * WEIGHTS).sum()
        np.testing.assert_allclose(cross_entropy_sums(logits, targets, WEIGHTS).correct, expected)


def test_label_smoothing_equals_optax_on_smooth_labels():
    logits = FEATURES @ TABLE
    labels = optax.smooth_labels(jax.nn.one_hot(TARGETS, 20), 0.2)
    expected = (optax.softmax_cross_entropy(logits, labels) * WEIGHTS).sum()
    sums = cross_entropy_sums(logits, TARGETS, WEIGHTS, label_smoothing=0.2)
    np.testing.assert_allclose(sums.objective, expected, rtol=1e-5)


def test_z_loss_is_the_squared_log_normalizer():
    logits = FEATURES @ TABLE
    extra = (
        cross_entropy_sums(logits, TARGETS, WEIGHTS, z_loss=0.5).objective
        - cross_entropy_sums(logits, TARGETS, WEIGHTS).objective
    )
    expected = 0.5 * (np.square(jax.nn.logsumexp(logits, -1)) * WEIGHTS).sum()
    np.testing.assert_allclose(extra, expected, rtol=1e-4)


def test_no_array_of_all_logits_is_in_the_compiled_gradient():
    """The promise itself: with chunks of 3 no buffer has 12 positions times 20 logits."""
    gradient = jax.jit(jax.grad(lambda f, t, chunk: objective(f, t, chunk)[0], argnums=(0, 1)), static_argnums=2)
    whole, chunked = (gradient.lower(FEATURES, TABLE, chunk).compile().as_text() for chunk in (None, 3))
    assert "f32[2,12,20]" in whole
    assert "12,20]" not in chunked


def test_chunks_must_divide():
    with pytest.raises(UsageError, match="loss_chunk must divide the sequence length 12"):
        objective(FEATURES, TABLE, 5)


def test_no_logits_are_computed_twice():
    gradient = jax.grad(lambda f, t, chunk: objective(f, t, chunk)[0], argnums=(0, 1))
    whole, chunked = (matmul_flops(lambda f, t, c=c: gradient(f, t, c), FEATURES, TABLE) for c in (None, 3))
    assert chunked == whole == 3 * 2 * 2 * 12 * 8 * 20


def test_weights_in_bfloat16_have_gradients_summed_in_float32():
    """Of a thousand pieces: a sum in bfloat16 would stall after some hundred and be off by more than a tenth."""
    features = jnp.ones((1, 1024, 1))
    targets, weights = jnp.zeros((1, 1024), jnp.int32), jnp.ones((1, 1024))
    loss = lambda table, chunk: chunked_cross_entropy(features, lambda x: x @ table, targets, weights, chunk).objective
    table = jnp.zeros((1, 2), jnp.bfloat16)
    gradient = jax.grad(loss)(table, 1)
    assert gradient.dtype == jnp.bfloat16
    np.testing.assert_array_equal(gradient, [[-512, 512]])  # half of each position


def test_other_arrays_of_the_head_than_weights_have_no_gradient():
    """Token ids that a closure brings along, as of a head that points at them."""
    raised = jnp.arange(20)

    def loss(table, raised, chunk):
        to_logits = lambda x: x @ table + jnp.where(raised == 3, 2.0, 0.0)
        return chunked_cross_entropy(FEATURES, to_logits, TARGETS, WEIGHTS, chunk).objective

    whole, chunked = (jax.jit(jax.grad(loss), static_argnums=2)(TABLE, raised, chunk) for chunk in (None, 4))
    np.testing.assert_allclose(chunked, whole, atol=1e-5)


def _jitted(loss):
    return jax.grad(jax.jit(loss))


def _checkpointed(loss):
    return jax.grad(jax.checkpoint(loss))


def _scanned(loss):
    def twice(table, targets):
        return jax.lax.scan(lambda total, targets: (total + loss(table, targets), None), 0.0, targets[None])[0]

    return jax.grad(twice)


@pytest.mark.parametrize("within", [_jitted, _checkpointed, _scanned])
def test_gradients_are_taken_through_whatever_holds_the_loss(within):
    def loss(table, targets, chunk):
        raised = targets[0, 0] == jnp.arange(20)  # integers and a mask that the head reads
        to_logits = lambda x: x @ table + jnp.where(raised, 2.0, 0.0)
        return chunked_cross_entropy(FEATURES, to_logits, targets, 1.0 * (targets > 3), chunk).objective

    whole, chunked = (within(lambda t, y, c=c: loss(t, y, c))(TABLE, TARGETS) for c in (None, 4))
    np.testing.assert_allclose(chunked, whole, atol=1e-4)
