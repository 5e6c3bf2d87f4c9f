"""Models of Transformer-VQ's references: sizes, logits, training traces, truncated back-propagation."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from registry.index import entries
from registry.records.snapshot import snapshot
from registry.resolve import find, resolve
from runners.session import Session
from tasks.batch import Batch, empty_batch
from tasks.decoding.generation import Sampler
from tasks.optimizers.schedules import Schedule
from tasks.train_step import init_state, train_step
from tests.support.references.models import same
from tests.support.references.vq import NUMBERS, model_task, model_variables

MAIN = {"NORM_SCALE": "vector", "FINAL_NORM": True, "POSITIONS": "scaled_sinusoidal", "BIASES": ("norm", "head")}
MULTI_HEAD = {"MIXER_GATE": False, "NUM_HEADS": None, "FFN": "dense", "NUM_LAYERS": 2}
MAIN |= {"TBPTT_LEN": 16, "SEQ_LEN": 48, "CODEBOOK_METRICS": True}


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("vq.VQEnwik8", 187_605_504),
        ("vq.VQImageNet64", 1_249_421_312),
        ("vq.VQPg19", 1_314_426_880),
        ("VQ-Large", 1_314_426_880),
        ("vq.VQSmall", 187_605_504),
        ("vq.VQTiny", 15_760_072),
        ("vq.VQStdlib", 574_208),
        ("vq.FullStdlib", 557_568),
    ],
)
def test_stated_sizes(name, parameters):
    assert snapshot(find(name)())["totals"]["parameters"] == parameters


def test_docstrings_state_their_sizes():
    for name in (name for name in entries() if name.startswith("vq.")):
        found = re.findall(r"(\d[\d.,]*) (million|billion)?", find(name).__doc__)
        number, unit = next((n, u) for n, u in found if u or ("," in n and len(n) > 6))
        parameters = snapshot(find(name)())["totals"]["parameters"]
        scale = {"million": 1e6, "billion": 1e9, "": 1}[unit]
        digits = len(number.partition(".")[2])
        assert abs(parameters / scale - float(number.replace(",", ""))) <= 0.5 * 10**-digits, name


def test_twins_have_the_same_weights_without_codebooks():
    for vq, full in (("VQLarge", "FullLarge"), ("VQThroughput", "FullThroughput"), ("VQStdlib", "FullStdlib")):
        rows = [{r["path"]: r["shape"] for r in snapshot(find(n)())["weights"]} for n in (vq, full)]
        assert {path: shape for path, shape in rows[0].items() if path.startswith("params/")} == rows[1]


@pytest.mark.parametrize(
    ("prefix", "heads", "knobs"),
    [
        ("model/untied/params0/", "shga", {}),
        ("opt/shga/model_params/", "shga", {"BIASES": ("head",)}),
        ("opt/mha/model_params/", "mha", {"BIASES": ("head",), **MULTI_HEAD}),
        ("opt/mha/model_params/", "mha", {"BIASES": ("head",), **MULTI_HEAD, "REDUCTION": "scan", "BLOCK_LEN": 4}),
    ],
)
def test_logits(prefix, heads, knobs):
    task = model_task(**knobs | ({"MEMORY_LEN": 8} if "BLOCK_LEN" in knobs else {}))
    family = prefix.split("/")[0]
    key = "model/untied/logits" if family == "model" else f"opt/{heads}/logits"
    features, _ = task.model.apply(model_variables(prefix, heads), NUMBERS["model/inputs"][0])
    logits = task.model.apply(model_variables(prefix, heads), features, method="logits")
    np.testing.assert_allclose(logits, NUMBERS[key], atol=1e-5)


def batch_of(prefix, index=None, cut=slice(None)):
    inputs, targets, mask = (NUMBERS[f"{prefix}/{name}"] for name in ("inputs", "targets", "loss_mask"))
    inputs, targets, mask = (x[..., cut] if index is None else x[index] for x in (inputs, targets, mask))
    return Batch(inputs=inputs, targets=targets, weights=mask.astype(np.float32))


def close_weights(variables, prefix, atol=1e-4):
    expected = model_variables(prefix)
    pairs = zip(
        jax.tree_util.tree_leaves_with_path(expected), jax.tree_util.tree_leaves_with_path(variables), strict=True
    )
    for (path, want), (other, got) in pairs:
        assert path == other
        np.testing.assert_allclose(got, want, atol=atol * max(1, np.abs(want).max()), err_msg=str(path))


def test_training_trace():
    """Four updates of AdamW with clipping, warm-up and decay; the codebook counts 4 blocks for 1, as theirs does."""
    task = model_task(
        CODEBOOK_INFLATION=4.0, DECAY_SCALE="learning_rate", DECAY_ROLES=("embedding", "hidden", "output", "bias")
    )
    state = init_state(task, jax.random.key(0), empty_batch(2, 1))
    state = state.replace(variables=jax.tree.map(jnp.asarray, model_variables("model/untied/params0/")))
    update = jax.jit(functools.partial(train_step, task, log_every=1))
    for step in range(4):
        state = update(state, batch_of("model", step), jax.random.key(0))
        theirs = {name: NUMBERS[f"model/untied/metrics{step}/{name}"] for name in ("l_ce_term_avg", "l_commit_avg")}
        np.testing.assert_allclose(state.sums.loss / state.sums.normalizer, theirs["l_ce_term_avg"], rtol=1e-4)
        reported = state.sums.reports["commit_loss"] / state.sums.normalizer
        np.testing.assert_allclose(4 * reported, theirs["l_commit_avg"], rtol=1e-4)  # a mean over four attentions
        close_weights(state.variables, f"model/untied/params{step + 1}/")


def main_batch(update):
    cut = slice(16 * update, 16 * update + 16)
    batch = batch_of("main", cut=cut)
    places = np.broadcast_to(np.arange(48, dtype=np.int32)[cut], batch.inputs.shape)
    # Their mask also leaves padding out of the codebook; ours does so by segment.
    return batch.replace(segment_ids=(batch.weights > 0).astype(np.int32), row_positions=places)


def test_truncated_back_propagation_trace():
    """Three updates of 16 tokens on one row of 48: the state is carried, the weights change in between."""
    task = model_task(**MAIN, DECAY_ROLES=("embedding", "hidden", "output"))
    state = init_state(task, jax.random.key(0), empty_batch(2, 1))
    state = state.replace(variables=jax.tree.map(jnp.asarray, model_variables("main/params0/")))
    update = jax.jit(functools.partial(train_step, task, log_every=1))
    for step in range(3):
        state = update(state, main_batch(step), jax.random.key(0))
        sums, metrics = state.sums, {}
        for name, value in sums.reports.items():
            metrics[name] = value / sums.normalizer
        np.testing.assert_allclose(sums.objective / sums.normalizer, NUMBERS[f"main/loss{step}"], rtol=1e-4)
        np.testing.assert_allclose(4 * metrics["commit_loss"], NUMBERS[f"main/l_commit{step}"], rtol=1e-4)
        # The least and largest error are theirs of a block, ours of an update.
        assert metrics["quantization_error_min"] <= NUMBERS[f"main/metrics{step}/relative_err_min"] * 1.0001
        assert metrics["quantization_error_max"] >= NUMBERS[f"main/metrics{step}/relative_err_max"] * 0.9999
        for ours, theirs in METRICS.items():
            expected = NUMBERS[f"main/metrics{step}/{theirs}"]
            if step < 2 or not theirs.startswith(
                ("relative", "vec")
            ):  # the last batch has padding, which theirs counts
                np.testing.assert_allclose(metrics[ours], expected, rtol=2e-4, err_msg=ours)
        if step < 2:
            close_weights(state.variables, f"main/params{step + 1}/")


METRICS = {
    "codebook_cosine_min": "c_sim_min",
    "codebook_cosine_mean": "c_sim_mean",
    "codebook_cosine_max": "c_sim_max",
    "codebook_distance_min": "c_dist_min",
    "codebook_distance_mean": "c_dist_mean",
    "codebook_distance_max": "c_dist_max",
    "codebook_norm_min": "c_norm_min",
    "codebook_norm_mean": "c_norm_mean",
    "codebook_norm_max": "c_norm_max",
    "codebook_usage_min": "c_usage_min",
    "codebook_usage_mean": "c_usage_mean",
    "codebook_usage_max": "c_usage_max",
    "codebook_dead": "c_thresh_oob",
    "codebook_entropy": "c_entropy",
    "key_norm": "vec_norm_mean",
    "quantized_key_norm": "vec_hat_norm_mean",
    "quantization_error": "relative_err_mean",
}


@pytest.mark.parametrize("pieces", [(48,), (16, 16, 16), (1,) * 48, (7, 30, 11)])
def test_evaluation_and_decoding_of_the_reference(pieces):
    task = model_task(**MAIN)
    variables = model_variables("main/params0/")
    read = jax.jit(task.model.apply)
    state, logits, start = task.init_decode_state(2, 48), [], 0
    for piece in pieces:
        features, state = read(variables, NUMBERS["main/inputs"][:, start : start + piece], state)
        logits.append(task.model.apply(variables, features, method="logits"))
        start += piece
    log_probabilities = jax.nn.log_softmax(jnp.concatenate(logits, axis=1))
    np.testing.assert_allclose(log_probabilities, NUMBERS["main/eval_logprobs"], atol=2e-5)


@pytest.mark.parametrize(
    ("attention", "dropout", "microbatches", "rows"), [("vq", 0.3, 1, 1), ("vq", 0.0, 2, 2), ("distance", 0.0, 1, 2)]
)
def test_a_row_in_pieces_without_learning_is_the_complete_row(attention, dropout, microbatches, rows):
    """State, dropout of a row, and micro-batches are carried from update to update; new rows start without state."""
    common = {"LEARNING_RATE": 0.0, "CODEBOOK_DECAY": 1.0, "WEIGHT_DECAY": 0.0, "BATCH_SIZE": 4, "MIXER": attention}
    common |= {"SINUSOID_DROPOUT": dropout, "LAYER_DROPOUT": dropout}
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 20, (4, 33)).astype(np.int32)
    batch = Batch(inputs=tokens[:, :-1], targets=tokens[:, 1:], weights=np.ones((4, 32), np.float32))
    losses = {}
    for length in (32, 8):
        knobs = {"TBPTT_LEN": length, "GRADIENT_ACCUMULATION": microbatches} if length == 8 else {}
        task = model_task(**common, **knobs)
        state = init_state(task, jax.random.key(0), empty_batch(4, 1))
        update = jax.jit(functools.partial(train_step, task, log_every=100))
        for _ in range(rows):
            for start in range(0, 32, length):
                cut = jax.tree.map(lambda x, s=start, n=length: x[:, s : s + n], batch)
                places = np.arange(start, start + length, dtype=np.int32)[None].repeat(4, 0)
                state = update(state, cut.replace(row_positions=places), jax.random.key(7))
        losses[length] = float(state.sums.loss)
    np.testing.assert_allclose(losses[8], losses[32], rtol=1e-5)


def test_updates_and_pieces_do_not_change_the_codebook_count():
    """Averages of true global counts: micro-batches are counted once, together."""
    states = {}
    for pieces in (1, 2):
        task = model_task(GRADIENT_ACCUMULATION=pieces)
        state = init_state(task, jax.random.key(0), empty_batch(2, 1))
        update = jax.jit(functools.partial(train_step, task, log_every=1))
        states[pieces] = update(state, batch_of("model", 0), jax.random.key(0)).variables["codebooks"]
    for a, b in zip(jax.tree.leaves(states[1]), jax.tree.leaves(states[2]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    counts = [x for path, x in jax.tree_util.tree_leaves_with_path(states[1]) if path[-1].key == "codebook_count_kc"]
    for count in counts:
        np.testing.assert_allclose(count.sum(-1), 0.99 * 6 + 0.01 * 64, rtol=1e-5)


def test_schedules_of_the_reference():
    for kind in ("cosine", "linear"):
        ours = Schedule(kind=kind, warmup_steps=10_000, decay_steps=125_000, end_factor=0.1, first_step=0)
        for step, factor in zip(NUMBERS["sched/steps"], NUMBERS[f"sched/{kind}"], strict=True):
            np.testing.assert_allclose(ours(step), factor, atol=1e-6)


def test_nucleus_of_the_reference():
    for key in (name for name in NUMBERS.files if name.startswith("nucleus/0")):
        # Theirs keeps what is above 1 - (p - 1e-4). Equally likely tokens are as good as each other.
        logits = Sampler(top_p=float(key.split("/")[1]) - 1e-4).keep(jnp.asarray(NUMBERS["nucleus/logits"])[None])[0]
        np.testing.assert_array_equal(
            np.sort(logits[np.isfinite(logits)]), np.sort(NUMBERS[key][NUMBERS[key] > -1e9]), key
        )


def test_devices_of_one_row_pass_on_blocks_and_totals_only():
    """Neither windows nor caches are gathered along the complete sequence."""
    knobs = ["DEVICE_MESH_SHAPE=1,4,1", "SEQ_LEN=64", "BATCH_SIZE=2"]
    session = Session(resolve("VQEnwik8", knobs, smoke=True), jax.devices()[:4])
    with session.placed():
        text = session.functions.lower_step(session.abstract.batch, session.abstract.seed).compile().as_text()
    sent = re.findall(r"= (\w+)\[([\d,]*)\]\S* (all-gather|collective-permute)\(.*?op_name=\"([^\"]*)\"", text)
    mixer = [(kind, shape, op) for kind, shape, op, name in sent if "_windows" in name or "_prefixes" in name]
    assert any(op == "collective-permute" for _, _, op in mixer)
    assert {kind for kind, _, op in mixer if op == "all-gather"} <= {"s32"}, "segment numbers at most"
    # The largest thing that is passed on is a device's total: 2 rows, 16 codes, 64 values.
    assert (
        max(np.prod([int(n) for n in shape.split(",")]) for kind, shape, _ in mixer if kind == "f32") <= 2 * 2 * 16 * 64
    )


@pytest.mark.parametrize(("name", "shape"), [("VQEnwik8Tbptt", (1, 8, 1)), ("VQThroughputMha", (2, 2, 2))])
def test_every_split_gives_the_weights_of_one_device(name, shape):
    states = {}
    for mesh in ((1, 1, 1), shape):
        knobs = [f"DEVICE_MESH_SHAPE={','.join(map(str, mesh))}", "LOG_EVERY=1"]
        session = Session(resolve(name, knobs, smoke=True), jax.devices()[: int(np.prod(mesh))])
        with session.placed():
            batches = session.host_batches.iterate(session.train.input)
            state, update = session.functions.init(), None
            for _ in range(3):
                batch, _ = next(batches)
                update = update or session.functions.compile_step(batch)
                state = jax.block_until_ready(update(state, batch, session.seed))
        states[mesh] = jax.device_get(state.variables)
    one, many = states.values()
    assert not same(one, jax.tree.map(np.zeros_like, one))
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(one), jax.tree.leaves(many), strict=True):
        np.testing.assert_allclose(a, b, atol=3e-4, err_msg=str(path))
