"""Numbers of the Mu-Transformer's own code: losses of six updates for every option, activations, gradients, sizes."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from layers.auxiliary import WATCHED
from registry.build import build
from registry.records.snapshot import snapshot
from registry.resolve import find, resolve
from registry.templates.mu_lm import MuLm
from runners.session import Session
from tasks.batch import Batch, empty_batch
from tasks.train_step import init_state, train_step

SETUP: dict[str, Any] = {"NUM_LAYERS": 2, "MODEL_DIM": 256, "SEQ_LEN": 64, "BATCH_SIZE": 8, "VOCAB_SIZE": 256}
SETUP |= {"LEARNING_RATE": 2**-8, "WARMUP_STEPS": 2, "NUM_STEPS": 10, "DATA": "synthetic", "REMAT": "none"}
SETUP |= {"DTYPE": "float32", "MOMENT_DTYPE": "float32"}
# In the order in which they are drawn; the head size is 128.
WEIGHTS = {
    "params/embedding/embedding_vm": lambda L, M: (256, M),
    "params/stack/block/mixer/query_mnd": lambda L, M: (L, M, M // 128, 128),
    "params/stack/block/mixer/key_mkd": lambda L, M: (L, M, M // 128, 128),
    "params/stack/block/mixer/value_mkd": lambda L, M: (L, M, M // 128, 128),
    "params/stack/block/mixer/attention_out_ndm": lambda L, M: (L, M // 128, 128, M),
    "params/stack/block/ffn/ffn_in_mf": lambda L, M: (L, M, 4 * M),
    "params/stack/block/ffn/ffn_out_fm": lambda L, M: (L, 4 * M, M),
    "params/head/unembedding_mv": lambda L, M: (M, 256),
}

BIASES = ("qkv", "attention_out", "ffn", "head")


def variables_of(task, width=256):
    """The setup's weights: Gaussians with the deviations of the weight table, biases 0, gains 1."""
    rows = {row.path: row for row in task.weight_table()}
    flat = {path: np.full(row.shape, float(row.role == "scale"), np.float32) for path, row in rows.items()}
    for number, (path, shape_of) in enumerate(WEIGHTS.items(), 1):
        drawn = np.random.RandomState(number).standard_normal(shape_of(2, width)).astype(np.float32)
        flat[path] = drawn * np.float32(rows[path].stddev)
    return jax.tree.map(jnp.asarray, traverse_util.unflatten_dict(flat, sep="/"))


def batch_of(number):
    random = np.random.RandomState(1000 + number)
    tokens = random.randint(2, 256, size=(8, 64)).astype(np.int32)
    tokens[:, 32:] = tokens[:, :32]
    tokens[1, 40:] = 1
    ended = np.cumsum(tokens == 1, axis=1) - (tokens == 1) > 0
    inputs = np.pad(tokens, ((0, 0), (1, 0)))[:, :-1]
    return Batch(inputs=inputs, targets=tokens, weights=(~ended).astype(np.float32))


def task_of(**knobs):
    return build(MuLm.derive(**SETUP | knobs)().Task(), "task")


def start_of(task, width=256):
    state = init_state(task, jax.random.key(0), empty_batch(8, 1))
    return state.replace(variables=variables_of(task, width))


def losses_of(task, width=256, accumulate=1):
    """Loss at steps 0 to 5, then of batch 77; an update follows every `accumulate` batches."""
    state = start_of(task, width)
    update = jax.jit(functools.partial(train_step, task, log_every=1))
    measure = jax.jit(lambda variables, batch: task.loss(variables, batch)[1].metrics)
    mean = lambda sums: float(sums.loss / sums.weight)
    losses, rows = [], []
    for number in range(6):
        rows.append(batch_of(number))
        losses.append(mean(measure(state.variables, rows[-1])))
        if len(rows) == accumulate:
            # Row r goes to micro-batch r % 2: the two batches take turns.
            joined = jax.tree.map(lambda *x: np.stack(x, 1).reshape(-1, *x[0].shape[1:]), *rows)
            state, rows = update(state, joined, jax.random.key(0)), []
    return [*losses, mean(measure(state.variables, batch_of(77)))]


STANDARD = {"PARAMETRIZATION": "standard"}
GAINS = {"NORM_SCALE": "vector"}
LOSSES = {
    "muP": ({}, "5.545540 5.544023 5.547709 5.565252 5.536910 5.557233 5.570691"),
    "width 128": ({"MODEL_DIM": 128}, "5.552020 5.549951 5.555362 5.560229 5.539242 5.560349 5.572419"),
    "standard": (STANDARD, "6.007397 5.966209 6.077867 6.128057 5.903438 5.810448 5.912046"),
    "standard, biases, gains": (
        STANDARD | GAINS | {"BIASES": BIASES},
        "6.007397 5.966209 6.080098 6.123085 5.899552 5.806878 5.908107",
    ),
    "squared relu": (
        {"ACTIVATION": "squared_relu"},
        "5.544871 5.547848 5.547319 5.562137 5.539685 5.555929 5.572159",
    ),
    "gelu": ({"ACTIVATION": "gelu_tanh"}, "5.545452 5.544019 5.546458 5.562511 5.537200 5.550981 5.566885"),
    "biases": ({"BIASES": BIASES}, "5.545540 5.544023 5.547973 5.565640 5.536992 5.557906 5.571463"),
    "gains": (GAINS, "5.545540 5.544023 5.547717 5.565309 5.536917 5.557342 5.570701"),
    "embedding norm": ({"EMBEDDING_NORM": True}, "5.545517 5.543999 5.547966 5.565103 5.536554 5.557148 5.570427"),
    "no positions": ({"POSITIONS": "none"}, "5.545519 5.544070 5.547786 5.565308 5.536866 5.557309 5.570646"),
    "zero queries": ({"QUERY_INIT": "zero"}, "5.545589 5.544087 5.547687 5.565370 5.536727 5.556854 5.570380"),
    "zero residuals": ({"BRANCH_INIT": "zero"}, "5.547703 5.543305 5.545441 5.560387 5.536831 5.554338 5.572778"),
    "zero head": ({"UNEMBEDDING_INIT": "zero"}, "5.545177 5.545177 5.549850 5.545399 5.551284 5.544098 5.567344"),
    "decay": ({"WEIGHT_DECAY": 0.1}, "5.545540 5.544023 5.547709 5.565247 5.536910 5.557226 5.570664"),
    "decay by the schedule": (
        {"WEIGHT_DECAY": 1e-3, "DECAY_SCALE": "schedule"},
        "5.545540 5.544023 5.547709 5.565221 5.536904 5.557173 5.570620",
    ),
    "cosine": ({"SCHEDULE": "cosine"}, "5.545540 5.544023 5.547709 5.565252 5.537367 5.557881 5.572625"),
    "two micro-batches": (
        {"GRADIENT_ACCUMULATION": 2},
        "5.545540 5.544024 5.542829 5.556471 5.540928 5.547343 5.562506",
    ),
    "normalized squared relu": (
        {"SCORE_FUNCTION": "normalized_squared_relu"},
        "5.545607 5.543235 5.548051 5.561159 5.540555 5.549527 5.570357",
    ),
    "normalized elu": (
        {"SCORE_FUNCTION": "normalized_elu_plus_1"},
        "5.545541 5.544029 5.547711 5.565276 5.536855 5.557287 5.570627",
    ),
    "elu": ({"SCORE_FUNCTION": "elu_plus_1"}, "5.547261 5.543534 5.548792 5.563417 5.537994 5.556415 5.570942"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name):
    knobs, text = LOSSES[name]
    expected = [float(word) for word in text.split()]
    task = task_of(**knobs)
    losses = losses_of(task, knobs.get("MODEL_DIM", 256), knobs.get("GRADIENT_ACCUMULATION", 1))
    np.testing.assert_allclose(losses[:3], expected[:3], atol=2e-5)
    np.testing.assert_allclose(losses[3:], expected[3:], atol=2e-4)


def test_losses_in_bfloat16():
    """Norms, softmax and loss are float32 here, bfloat16 there: closer to the float32 row than to a rounding of it."""
    losses = losses_of(task_of(DTYPE="bfloat16", MOMENT_DTYPE="bfloat16"))
    expected = [5.545539, 5.544031, 5.547750, 5.565239, 5.536931, 5.557200, 5.570736]
    np.testing.assert_allclose(losses, expected, atol=2e-4)


@pytest.mark.parametrize(
    ("knobs", "parameters"),
    [
        ({}, 1_703_936),
        ({"MODEL_DIM": 128}, 458_752),
        (STANDARD | GAINS | {"BIASES": BIASES}, 1_710_080),
        ({"BIASES": BIASES}, 1_708_800),
        (GAINS, 1_705_216),
    ],
)
def test_sizes(knobs, parameters):
    assert sum(row.size for row in task_of(**knobs).weight_table()) == parameters


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("MuSmall", 2 * 32100 * 128 + 12 * 24 * 128**2),
        ("Mu256", 2 * 32100 * 256 + 12 * 24 * 256**2),
        ("MuMedium", 2 * 32100 * 512 + 12 * 24 * 512**2),
        ("Mu1024", 2 * 32100 * 1024 + 12 * 24 * 1024**2),
        ("MuLarge", 2 * 32100 * 2048 + 12 * 24 * 2048**2),
        ("Mu4096", 2 * 32100 * 4096 + 12 * 24 * 4096**2),
        ("MuHuge", 2 * 32100 * 8192 + 12 * 24 * 8192**2),
        ("MuHuge12", 2 * 32100 * 8192 + 12 * 12 * 8192**2),
        ("MuMultiQuery", 2 * 32100 * 512 + 24 * (12 * 512**2 + 2 * 512 * 128)),
    ],
)
def test_stated_sizes(name, parameters):
    cls = find(f"mu.{name}")
    assert snapshot(cls())["totals"]["parameters"] == parameters
    number, unit = cls.__doc__.split()[:2]
    digits = len(number.partition(".")[2])
    assert abs(parameters / {"million": 1e6, "billion": 1e9}[unit] - float(number)) <= 0.5 * 10**-digits


def read(task):
    """Activations by path, with gradients of the weights, before the first update."""
    variables, batch = variables_of(task), batch_of(0)

    @jax.jit
    def run(variables):
        features, found = task.model.apply(variables, batch.inputs, mutable=[WATCHED])
        logits = task.model.apply(variables, features[0], method="logits")
        gradient = jax.grad(lambda v: task.loss(v, batch)[0] / task.loss(v, batch)[1].normalizer)(variables)
        return traverse_util.flatten_dict(found[WATCHED], sep="/"), logits, gradient["params"]

    return run(variables)


def test_activations_and_gradients_before_the_first_update():
    watched, logits, gradient = read(task_of())
    np.testing.assert_allclose(logits[0, 0, :4], [-0.0738899, 0.0159621, -0.0146258, -0.0981277], atol=1e-6)
    np.testing.assert_allclose(logits[3, 63, :4], [-0.0115264, -0.0762412, 0.00404287, -0.0528628], atol=1e-6)
    np.testing.assert_allclose(np.abs(logits).mean(), 0.0495278, rtol=1e-5)
    sizes = {
        "mixer_in": (0.798178, 0.798108),
        "mixer/query_bsnd": (0.799936, 0.798468),
        "mixer/key_bskd": (0.797342, 0.791298),
        "mixer/value_bskd": (0.802712, 0.794827),
        "mixer/query_rotated": (0.800554, 0.799309),
        "mixer/key_rotated": (0.798153, 0.791482),
        "mixer/scores": (0.0691799, 0.0693404),
        "mixer/probabilities": (1 / 64, 1 / 64),
        "mixer/mixed_bsnd": (0.209871, 0.34876),
        "mixer_out": (0.213263, 0.35547),
        "ffn_in": (0.798655, 0.798103),
        "ffn/hidden_bsf": (0.793952, 0.794202),
        "ffn/activated": (0.393068, 0.3962),
        "ffn_out": (0.539742, 0.559128),
    }
    for name, expected in sizes.items():
        seen = np.abs(watched[f"stack/block/{name}"]).mean(axis=tuple(range(1, watched[f"stack/block/{name}"].ndim)))
        np.testing.assert_allclose(seen, expected, rtol=2e-5, err_msg=name)
    flat = traverse_util.flatten_dict(gradient, sep="/")
    norms = (0.00363555, 0.00128199, 0.00128015, 0.0265619, 0.0266037, 0.0422613, 0.0928062, 0.949529)
    for path, norm in zip(WEIGHTS, norms, strict=True):
        np.testing.assert_allclose(np.linalg.norm(flat[path.removeprefix("params/")]), norm, rtol=2e-5, err_msg=path)


def test_loss_over_all_positions_and_the_share_that_counts():
    task = task_of()
    objective, output = task.loss(variables_of(task), batch_of(0))
    np.testing.assert_allclose(objective / output.normalizer, 5.296424, rtol=1e-6)
    np.testing.assert_allclose(output.metrics.weight / output.normalizer, 0.955078, rtol=1e-6)


def test_sizes_of_the_first_update_and_of_weights_after_six():
    task = task_of()
    state = start_of(task)
    update = jax.jit(functools.partial(train_step, task, log_every=1))
    begun = traverse_util.flatten_dict(state.variables, sep="/")
    seen = {}
    for number in range(6):
        state = update(state, batch_of(number), jax.random.key(0))
        if number == 0:
            now = traverse_util.flatten_dict(state.variables, sep="/")
            rates = {row.path: row.rate for row in task.weight_table()}
            for path in WEIGHTS:
                moved = np.abs(now[path] - begun[path]) / (2**-8 * 1e-4 * rates[path])
                layers = tuple(range(1, moved.ndim)) if "stack" in path else None
                seen[path.rpartition("/")[2]] = moved.mean(axis=layers)
    # Weights of size 1 move by 4e-7: some are lost to rounding, more in the embedding than elsewhere.
    np.testing.assert_allclose(seen["embedding_vm"], 0.61787, rtol=2e-2)
    np.testing.assert_allclose(seen["query_mnd"], (0.98594, 0.98171), rtol=2e-3)
    np.testing.assert_allclose(seen["value_mkd"], (0.9946, 0.99452), rtol=2e-3)
    np.testing.assert_allclose(seen["attention_out_ndm"], (0.99441, 0.99448), rtol=2e-3)
    np.testing.assert_allclose(seen["ffn_in_mf"], (0.99454, 0.99436), rtol=2e-3)
    np.testing.assert_allclose(seen["ffn_out_fm"], (0.99745, 0.99726), rtol=2e-3)
    np.testing.assert_allclose(seen["unembedding_mv"], 0.99972, rtol=2e-3)
    after = traverse_util.flatten_dict(state.variables, sep="/")
    sizes = {path.rpartition("/")[2]: float(np.abs(leaf).mean()) for path, leaf in after.items()}
    np.testing.assert_allclose(sizes["embedding_vm"], 0.799364, rtol=1e-5)
    np.testing.assert_allclose(sizes["query_mnd"], 0.0499598, rtol=1e-5)
    np.testing.assert_allclose(sizes["ffn_out_fm"], 0.0250942, rtol=1e-5)
    np.testing.assert_allclose(sizes["unembedding_mv"], 0.00416799, rtol=1e-3)


def on_mesh(shape, start, **knobs):
    """Losses of six updates on a mesh, and of batch 77; bytes that devices hold are those of the table."""
    cls = MuLm.derive(**SETUP | knobs | {"DEVICE_MESH_SHAPE": shape})
    session = Session(cls(), jax.devices()[: int(np.prod(shape))])
    totals = snapshot(cls())["totals"]
    with session.placed():
        state = session.functions.init()
        if start is not None:
            placed = jax.tree.map(jax.device_put, start, session.abstract.state_shardings.variables)
            state = state.replace(variables=placed)
        held = lambda tree: sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(tree) if x.ndim)
        predicted = session.task.weight_table().tree(lambda row: row.bytes_per_device(session.mesh_shape))
        assert jax.tree.map(lambda x: x.addressable_shards[0].data.nbytes, state.variables) == predicted
        assert held(state.variables) == totals["bytes_per_device"]
        assert held(state.optimizer) == totals["optimizer_bytes_per_device"]
        update, losses = session.functions.compile_step(session.host_batches.put(batch_of(0))), []
        for number in range(6):
            state = session.settle(update(state, session.host_batches.put(batch_of(number)), session.seed))
            losses.append(float(state.sums.loss / state.sums.weight))
            state = state.replace(sums=jax.tree.map(jnp.zeros_like, state.sums))
        sums = session.functions.metrics_of(state.variables, session.host_batches.put(batch_of(77)))
        return [*losses, float(sums.loss / sums.weight)]


@pytest.mark.parametrize("shape", [(4, 2), (8, 1)])
@pytest.mark.parametrize("name", ["muP", "standard, biases, gains"])
def test_golden_losses_on_meshes(shape, name):
    knobs, text = LOSSES[name]
    expected = [float(word) for word in text.split()]
    losses = on_mesh(shape, variables_of(task_of(**knobs)), **knobs)
    np.testing.assert_allclose(losses[:3], expected[:3], atol=2e-5)
    np.testing.assert_allclose(losses[3:], expected[3:], atol=2e-4)


def test_losses_on_more_columns_than_the_setup_has_heads():
    losses = {shape: on_mesh(shape, None, HEAD_DIM=32) for shape in ((1, 1), (1, 8))}
    for shape, found in losses.items():
        np.testing.assert_allclose(found, losses[1, 1], rtol=2e-5, err_msg=str(shape))


def test_presets_are_the_sheets():
    """Fields of the configurations that the reference ships, where a default of ours could have crept in."""
    for name, width, mesh in (("MuSmall", 128, (128, 1)), ("MuLarge", 2048, (32, 4)), ("MuHuge", 8192, (64, 4))):
        made = resolve(f"mu.{name}")
        assert (width, mesh) == (made.MODEL_DIM, made.DEVICE_MESH_SHAPE)
        assert made.BATCH_SIZE * made.SEQ_LEN == 2**18
        task = build(made.Task(), "task")
        chosen = task.optimizer
        assert (chosen.beta1, chosen.beta2, chosen.epsilon, chosen.moment_dtype) == (0.9, 0.95, 1e-8, "bfloat16")
        assert (chosen.clipping.global_norm, chosen.weight_decay) == (1.0, 0.0)
        assert float(chosen.schedule(0)) == pytest.approx(1e-4)
        assert float(chosen.schedule(10_000)) == 1
        assert float(chosen.schedule(125_000)) == pytest.approx(1e-4)
        mixer = task.model.stack.block.mixer
        assert (mixer.num_heads, mixer.head_dim, mixer.scale) == (width // 128, 128, 1 / 128)
        assert (mixer.dtype, mixer.param_dtype, task.model.stack.remat) == ("bfloat16", "float32", "full")
