"""Numbers of fattorib's GPT code: logits and losses of every form, and a training trace, on weights by a formula."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from registry.build import build
from registry.templates.gpt_lm import GptLm, ParallelGptLm
from tasks.batch import Batch, empty_batch
from tasks.train_step import init_state, train_step

SIZES: dict[str, Any] = {
    "MODEL_DIM": 48,
    "VOCAB_SIZE": 40,
    "NUM_HEADS": 6,
    "SEQ_LEN": 16,
    "NUM_LAYERS": 2,
    "DROPOUT": 0.0,
}
SIZES |= {"DATA": "synthetic", "DTYPE": "float32", "BATCH_SIZE": 2}
TORCH = {"ACTIVATION": "gelu_erf", "NORM_EPSILON": 1e-5}
PLAIN = {"BIASES": ()}  # ZeRO-transformer
BY_LENGTH = PLAIN | {"ATTENTION_SCALE": 0.25}  # its scores are scaled by the length 16
# Their names for ours, layer by layer; leaves are numbered in the order of theirs.
LAYER = {
    "CausalAttention_0.key_proj": "mixer/key",
    "CausalAttention_0.query_proj": "mixer/query",
    "CausalAttention_0.residual_out": "mixer/attention_out",
    "CausalAttention_0.value_proj": "mixer/value",
    "LayerNorm_0": "mixer_norm/norm",
    "LayerNorm_1": "ffn_norm/norm",
    "MLPBlock_0.fc_in": "ffn/ffn_in",
    "MLPBlock_0.fc_residual": "ffn/ffn_out",
}
OURS = {
    "LayerNorm_0": "final_norm/norm",
    "wte.embedding": "embedding/embedding_vm",
    "wpe.embedding": "positions/position_tm",
}
OURS |= {"logits_untied.kernel": "head/unembedding_mv"}
OURS |= {"head_q.kernel": "pointer/pointer_query_mc", "head_k.kernel": "pointer/pointer_key_mc"}


def task_of(base=GptLm, **knobs):
    return build(base.derive(**SIZES | knobs)().Task(), "task")


def their_leaves(rows):
    """Name and shape of each of their leaves, with our row that contains it and the layer."""
    found = {}
    short = {row.path.removeprefix("params/").removeprefix("stack/block/"): row for row in rows}
    for path, row in short.items():
        module, _, key = path.rpartition("/")
        stem = key.rpartition("_")[0]
        kind = "bias" if stem.endswith("_bias") else "scale" if stem.endswith("_scale") else "kernel"
        stem = f"{module}/{stem.removesuffix('_bias').removesuffix('_scale')}"
        theirs = [name for name, ours in LAYER.items() if ours == stem]
        if theirs:
            for layer in range(row.shape[0]):
                found[f"TransformerBlock_{layer}.{theirs[0]}.{kind}"] = (row, layer)
        else:
            name = next(name for name, ours in OURS.items() if ours in (path, stem))
            found[name if "." in name else f"{name}.{kind}"] = (row, None)
    return sorted(found.items())


def variables_of(task):
    """Entry k of leaf r is 0.2 cos(0.37 k + r), a tenth of the cosine for biases, and one more than that for scales."""
    flat = {row.path: np.zeros(row.shape, np.float32) for row in task.weight_table()}
    for number, (name, (row, layer)) in enumerate(their_leaves(task.weight_table())):
        shape = row.shape if layer is None else row.shape[1:]
        wave = np.cos(0.37 * np.arange(np.prod(shape)) + number).reshape(shape)
        kind = name.rpartition(".")[2]
        value = 1 + 0.1 * wave if kind == "scale" else (0.1 if kind == "bias" else 0.2) * wave
        flat[row.path][... if layer is None else layer] = value.astype(np.float32)
    return jax.tree.map(jnp.asarray, traverse_util.unflatten_dict(flat, sep="/"))


def tokens_of(length):
    i = np.arange(length)
    return np.stack([(7 * i**2 + 3 * i + 11 * b + 1) % 40 for b in range(2)]).astype(np.int32)


def batch_of(length):
    tokens = tokens_of(length)
    return Batch(inputs=tokens[:, :-1], targets=tokens[:, 1:], weights=np.ones((2, length - 1), np.float32))


def loss_of(task, length, positions=None):
    variables, batch = variables_of(task), batch_of(length)
    if positions is not None:
        batch = batch.replace(positions=np.full_like(batch.inputs, positions))
    with jax.default_matmul_precision("highest"):
        sums = jax.jit(lambda v: task.loss(v, batch)[1].metrics)(variables)
    return float(sums.loss / sums.weight)


LEARNED = {"POSITIONS": "learned"}
LOSSES = [
    ("sequential, alibi", GptLm, {}, None, 7.681414, 7.830158, 58_560),
    ("sequential, row 1 for every position", GptLm, LEARNED, 1, 9.859542, 10.329959, 59_328),
    ("parallel, row 1 for every position", ParallelGptLm, LEARNED, 1, 10.107565, 10.206245, 59_136),
    ("sequential, learned positions", GptLm, LEARNED, None, 8.986528, 9.740402, 59_328),
    ("torch twin", GptLm, TORCH, None, 7.680359, 7.829132, 58_560),
    ("Little-GPT", GptLm, TORCH | LEARNED, None, 8.976846, None, 59_328),
    ("Little-GPT, parallel", ParallelGptLm, TORCH | LEARNED, None, 7.665184, None, 59_136),
    ("ZeRO", GptLm, PLAIN, None, 8.855827, 9.107794, 57_456),
    ("ZeRO, scores by the length", GptLm, BY_LENGTH, None, 8.846266, None, 57_456),
    ("tensor parallel branch", ParallelGptLm, PLAIN | {"TIE_EMBEDDINGS": False}, None, 3.687394, None, 59_280),
    ("the same, by the length", ParallelGptLm, BY_LENGTH | {"TIE_EMBEDDINGS": False}, None, 3.687110, None, 59_280),
    ("ZeRO, scores by the length 11", GptLm, PLAIN | {"ATTENTION_SCALE": 11**-0.5}, None, None, 9.106017, 57_456),
]


@pytest.mark.parametrize(("name", "base", "knobs", "row", "long", "short", "size"), LOSSES, ids=lambda x: str(x)[:30])
def test_losses(name, base, knobs, row, long, short, size):
    del name
    task = task_of(base, **knobs)
    assert sum(r.size for r in task.weight_table()) == size
    for length, expected in ((16, long), (11, short)):
        if expected is not None:
            assert loss_of(task, length, row) == pytest.approx(expected, abs=3e-5)


@pytest.mark.parametrize(
    ("base", "knobs", "row", "first", "last"),
    [
        (GptLm, {}, None, (5.998404, 5.346839, -1.048525), (6.326709, 6.224398, -0.564421)),
        (GptLm, LEARNED, 1, (2.140903, 6.516136, 3.891463), (6.635091, 1.786198, -4.981504)),
        (ParallelGptLm, LEARNED, 1, (-4.259537, 1.977658, 6.090369), (5.289750, 5.735627, 0.020053)),
        (
            GptLm,
            PLAIN | {"ATTENTION_SCALE": 0.25},
            None,
            (1.774760, 6.586963, 4.323175),
            (4.730996, 6.258493, 1.062855),
        ),
    ],
)
def test_logits(base, knobs, row, first, last):
    task = task_of(base, **knobs)
    tokens, positions = tokens_of(16), None if row is None else np.full((2, 16), row)
    with jax.default_matmul_precision("highest"):
        features, _ = task.model.apply(variables_of(task), tokens, None, None, positions)
        logits = task.model.apply(variables_of(task), features, method="logits")
    np.testing.assert_allclose(logits[0, 0, :3], first, atol=5e-5)
    np.testing.assert_allclose(logits[1, -1, -3:], last, atol=5e-5)


def test_bfloat16():
    assert loss_of(task_of(DTYPE="bfloat16"), 16) == pytest.approx(7.7832, abs=0.02)
    assert loss_of(task_of(ParallelGptLm, DTYPE="bfloat16"), 16) == pytest.approx(9.1423, abs=0.02)


def test_training_trace():
    task = task_of(LEARNING_RATE=1e-2, SCHEDULE="constant", WARMUP_STEPS=0)
    state = init_state(task, jax.random.key(0), empty_batch(2, 1)).replace(variables=variables_of(task))
    update = jax.jit(functools.partial(train_step, task, log_every=1))
    losses, norms = [], []
    for _ in range(5):
        state = update(state, batch_of(16), jax.random.key(0))
        losses.append(float(state.sums.loss / state.sums.weight))
        norms.append(float(state.sums.grad_norm))
    np.testing.assert_allclose(losses, (7.681414, 6.204461, 5.551788, 5.283284, 5.024359), atol=2e-3)
    assert norms[0] == pytest.approx(103.53, rel=1e-4)
