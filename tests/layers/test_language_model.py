import jax
import jax.numpy as jnp
import numpy as np
import pytest

from layers.errors import UsageError
from layers.remat import REMAT_POLICIES
from tests.support.references.models import batch_of, same, task_of, train_losses, variables_of

TOKENS = jax.random.randint(jax.random.key(0), (2, 16), 0, 32)


def logits_of(task, variables, tokens=TOKENS, **options):
    features, _ = task.model.apply(variables, tokens, **options)
    return task.model.apply(variables, features, method="logits")


VARIANTS = {
    "default": {},
    "parallel_bias_layer_norm": {
        "RESIDUAL": "parallel",
        "BIASES": ("qkv", "attention_out", "ffn", "norm", "head"),
        "NORM": "layer",
    },
    "learned_untied": {"POSITIONS": "learned", "TIE_EMBEDDINGS": False},
    "sinusoidal_gated_multi_query": {
        "POSITIONS": "sinusoidal",
        "FFN": "gated",
        "ACTIVATION": "silu",
        "NUM_KV_HEADS": 1,
    },
    "gemma": {
        "RESIDUAL": "sandwich_norm",
        "NORM_SCALE": "one_plus_vector",
        "EMBEDDING_SCALE": "sqrt",
        "ATTENTION_WINDOW": (4, None),
        "ATTENTION_SOFTCAP": 2.0,
        "LOGITS_SOFTCAP": 3.0,
    },
    "olmo": {"RESIDUAL": "post_norm", "QK_NORM": "rms_all_heads", "ROTARY_SCALING": "linear", "ROTARY_FACTOR": 2.0},
    "top_k_experts": {
        "FFN": "gated_experts",
        "ROUTING": "top_k",
        "EXPERTS_PER_TOKEN": 3,
        "GATES": "softmax_then_top_k",
        "CAPACITY_FACTOR": None,
        "QK_NORM": "rms",
        "ROTARY_SCALING": "yarn",
        "ROTARY_FACTOR": 4.0,
        "ROTARY_LENGTH": 8,
    },
    "partial_llama3_rotary": {
        "ROTARY_SHARE": 0.5,
        "ROTARY_SCALING": "llama3",
        "ROTARY_FACTOR": 4.0,
        "ROTARY_LENGTH": 8,
        "BIASES": ("qkv",),
        "LOGITS_SOFTCAP": 3.0,
        "TIE_EMBEDDINGS": False,
    },
    "no_positions_grouped_query": {"POSITIONS": "none", "NUM_KV_HEADS": 2},
}


@pytest.mark.parametrize("knobs", VARIANTS.values(), ids=VARIANTS)
def test_decoding_equals_the_full_pass(knobs):
    task = task_of(**knobs)
    variables = variables_of(task)
    expected = logits_of(task, variables)
    state = task.init_decode_state(2, 16)
    step = jax.jit(task.decode_step)
    logits, state = step(variables, TOKENS[:, :5], state)
    np.testing.assert_allclose(logits, expected[:, 4], atol=2e-5)
    for i in range(5, 16):
        logits, state = step(variables, TOKENS[:, i : i + 1], state)
        np.testing.assert_allclose(logits, expected[:, i], atol=2e-5)


@pytest.fixture(scope="module")
def trained():
    return train_losses(3)


@pytest.mark.parametrize("remat", REMAT_POLICIES)
@pytest.mark.parametrize("unroll", [1, 2])
def test_unrolling_and_remat_change_no_number(trained, remat, unroll):
    plain, state = trained
    losses, other = train_losses(3, UNROLL=unroll, REMAT=remat)
    np.testing.assert_allclose(losses, plain, rtol=1e-6)
    for a, b in zip(jax.tree.leaves(state.variables), jax.tree.leaves(other.variables), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_scanned_and_unrolled_share_weights_and_numbers_under_dropout():
    scanned, unrolled = task_of(DROPOUT=0.3), task_of(DROPOUT=0.3, UNROLL=2)
    variables = variables_of(scanned)
    assert same(variables, variables_of(unrolled))
    rngs = {"dropout": jax.random.key(3)}
    a, b = (logits_of(task, variables, rngs=rngs) for task in (scanned, unrolled))
    np.testing.assert_allclose(a, b, atol=1e-6)
    assert not np.allclose(a, logits_of(scanned, variables), atol=1e-3)


def test_layers_differ_at_the_start():
    w = variables_of(task_of())["params"]["stack"]["block"]["ffn"]["ffn_in_mf"]
    assert w.shape == (2, 16, 32)
    assert not np.allclose(w[0], w[1])


def test_packed_rows_equal_segments_apart():
    task = task_of()
    variables = variables_of(task)
    ids = jnp.array([[1] * 6 + [2] * 10] * 2)
    positions = jnp.array([[*range(6), *range(10)]] * 2)
    together = logits_of(task, variables, segment_ids=ids, positions=positions)
    separate = [logits_of(task, variables, part) for part in (TOKENS[:, :6], TOKENS[:, 6:])]
    np.testing.assert_allclose(together, jnp.concatenate(separate, axis=1), atol=1e-5)


def test_a_position_beyond_the_learned_table_is_not_hidden():
    task = task_of(POSITIONS="learned", SEQ_LEN=8)
    assert np.isnan(logits_of(task, variables_of(task))[:, 8:]).all()
    assert task.context_limit() == 8
    assert task_of().context_limit() is None


def test_bfloat16_computes_in_bfloat16_and_ends_in_float32():
    task = task_of(DTYPE="bfloat16")
    variables = variables_of(task)
    features, _ = task.model.apply(variables, TOKENS)
    assert features.dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}
    logits = logits_of(task, variables)
    assert logits.dtype == jnp.float32
    np.testing.assert_allclose(logits, logits_of(task_of(), variables), atol=0.15)


def test_unknown_remat_policy():
    with pytest.raises(UsageError, match=r"Unknown remat policy 'dotts'. Did you mean 'dots'"):
        task_of(REMAT="dotts").weight_table()


@pytest.mark.parametrize("knobs", [{"TIE_EMBEDDINGS": False}, {"INIT_STDDEV": 0.02}])
def test_the_first_loss_is_that_of_a_guess(knobs):
    knobs = {"MODEL_DIM": 64, "VOCAB_SIZE": 128, **knobs}
    task = task_of(**knobs)
    _, output = task.loss(variables_of(task), batch_of(**knobs))
    assert float(output.metrics.loss / output.metrics.weight) == pytest.approx(np.log(128), abs=0.8)
