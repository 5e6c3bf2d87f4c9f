"""The GShard models against Lingvo's own numbers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from layers.weights.weight import _to_bfloat16
from registry.index import entries
from registry.records.snapshot import weight_summary
from registry.resolve import find, resolve
from runners.session import Session
from tasks.batch import Batch, empty_batch
from tasks.gradients import gradient_of
from tasks.train_step import TrainState, init_state, train_step
from tests.registry.test_entries import train
from tests.support.references.lingvo import CASES, NUMBERS, at, batch, params_of, task_of

# Parameters; bytes per device of float32 weights; of factored slots that follow their weights, or of Adam's slots.
SIZES = {
    "gshard.DenseLm8B2x2": (8_852_168_704, 4_426_399_744, 1_934_336),
    "gshard.DenseLm8B2x2Decode": (8_852_168_704, 4_426_399_744, 1_934_336),
    "gshard.DenseLm128B8x8": (137_702_416_384, 4_365_778_944, 11_435_008),
    "gshard.DenseLm128B16x16": (137_702_416_384, 1_111_785_472, 8_419_328),
    "gshard.DenseLm128B32x32": (137_702_416_384, 290_095_104, 6_911_488),
    "gshard.DenseLm175B32x32": (174_366_928_896, 401_522_688, 11_837_440),
    "gshard.DenseLm175B32x32DP": (174_366_928_896, 793_559_040, 13_609_984),
    "gshard.DenseLm175B1K": (174_366_928_896, 793_559_040, 13_609_984),
    "gshard.DenseLM13B32x32": (12_757_652_480, 48_025_600, 2_180_352),
    "gshard.DenseLm175B8x8Decode2D": (174_366_928_896, 5_458_378_752, 16_585_024),
    "gshard.DenseLm1T16x16": (1_100_041_175_040, 8_676_507_648, 33_225_728),
    "gshard.DenseLm12kWide41BAdam16x16": (43_905_527_808, 394_444_800, 788_889_600),
    "gshard.DenseLm12kWide41BAdam8x8": (43_905_527_808, 1_465_958_400, 2_931_916_800),
    "gshard.DenseLm12kWide162BAdam16x16": (174_366_928_896, 1_420_738_560, 2_841_477_120),
    "gshard.DenseLm12kWide162BAdamBS25616x16": (174_366_928_896, 1_420_738_560, 2_841_477_120),
    "gshard.DenseLm12kWide162BAdam32x32": (174_366_928_896, 401_522_688, 803_045_376),
    "wiki_bert.MLPerfTrainBertDense2B": (2_020_917_248, 126_598_144, 846_652),
    "wiki_bert.MLPerfBertDense1T": (963_139_092_480, 3_783_278_592, 36_651_840),
    "wiki_bert.MLPerfBertDense1TWider": (894_672_601_088, 3_504_373_760, 16_854_848),
    "wiki_bert.MLPerfBertDense175B": (203_641_073_664, 804_950_016, 14_147_008),
    "wiki_bert.MLPerfBertDense500B": (481_815_347_200, 1_890_537_472, 16_266_832),
    "wiki_bert.MLPerfBertDense500B2K": (481_815_347_200, 949_495_808, 23_273_120),
    "wiki_bert.MLPerfBertDense13B32x32": (14_899_368_960, 30_758_400, 2_112_864),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name):
    totals = weight_summary(resolve(name))["totals"]
    assert tuple(totals[k] for k in ("parameters", "bytes_per_device", "optimizer_bytes_per_device")) == SIZES[name]


def test_every_entry_of_the_reference_is_there():
    ours = {name for name in entries() if name.startswith(("gshard.Dense", "wiki_bert."))}
    assert ours == set(SIZES)


@pytest.mark.parametrize("name", [name for name in entries() if name.startswith("gshard.Moe")])
def test_names_of_mixtures_state_their_sizes(name):
    experiment = resolve(name)
    experts, _, size = name.rpartition("Lm")[2].partition("x")
    parameters = weight_summary(experiment)["totals"]["parameters"]
    assert int(experts) == experiment.NUM_EXPERTS
    assert f"{parameters / 1e9:.0f}B" == size


KEYS = (jax.random.key(0), jax.random.key(1))


@pytest.mark.parametrize("case", CASES)
def test_forward_and_gradient(case):
    numbers, task = NUMBERS["cases"][case], task_of(case)
    params = params_of(case, task)
    gradient, output = jax.grad(lambda p: mean_loss(task, p), has_aux=True)(params)
    metrics = output.metrics
    np.testing.assert_allclose(metrics.objective / metrics.normalizer, numbers["loss"], rtol=2e-6)
    np.testing.assert_allclose(metrics.loss / metrics.weight, numbers["xent"], rtol=2e-6)
    np.testing.assert_allclose(metrics.correct / metrics.weight, numbers["accuracy"], rtol=1e-6)
    assert float(metrics.weight) == numbers["weight"]
    features, _ = task.model.apply({"params": params}, batch().inputs, None, batch().segment_ids, batch().positions)
    logits = task.model.apply({"params": params}, features, method="logits")
    np.testing.assert_allclose(logits, numbers["logits"], atol=1e-5)
    for (name, _), norm in zip(numbers["variables"], numbers["grad_norms"], strict=True):
        np.testing.assert_allclose(np.linalg.norm(at(gradient, case, name)), norm, rtol=2e-4, err_msg=name)
    if case.startswith("C"):
        np.testing.assert_allclose(metrics.reports["router_aux_loss"] / metrics.normalizer, numbers["aux"], rtol=1e-5)


def mean_loss(task, params):
    loss, output = task.loss({"params": params}, batch())
    return loss / output.normalizer, output


@pytest.mark.parametrize(
    ("trace", "knobs", "tolerance"), [("A", {}, 2e-6), ("C", {}, 2e-6), ("A_bf16fprop", {"DTYPE": "bfloat16"}, 8e-3)]
)
def test_training(trace, knobs, tolerance):
    case = trace.partition("_")[0]
    task = task_of(case, **knobs)
    state = init_state(task, jax.random.key(0), empty_batch(1, 1))
    state = state.replace(variables={"params": params_of(case, task)})
    update = jax.jit(functools.partial(train_step, task, log_every=1))
    losses = []
    for _ in range(4):
        state: TrainState = update(state, batch(), jax.random.key(0))
        losses.append(float(state.sums.objective / state.sums.normalizer))
    np.testing.assert_allclose(losses, NUMBERS["training"][trace], rtol=tolerance)


def test_learning_rates():
    optimizer = task_of("A").optimizer
    for step, rate in NUMBERS["rates"].items():
        np.testing.assert_allclose(optimizer.learning_rate_at(int(step)), rate, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_in_bfloat16_stay_close(dtype):
    """The gradient arrays are bfloat16; weights, sums over a lookup and updates are float32."""
    wide, narrow = (
        task_of("C", DTYPE=dtype, SEQ_LEN=1024, GRADIENT_DTYPE=gradient_dtype)
        for gradient_dtype in ("float32", "bfloat16")
    )
    variables = {"params": params_of("C", wide)}
    often = jnp.where(jnp.arange(1024) % 4 == 0, jnp.arange(1024) % 16, 3)[None].repeat(2, 0)  # one token, 1500 times
    many = Batch(inputs=often, targets=often, weights=jnp.ones((2, 1024)))
    expected, _ = gradient_of(wide, variables, many, None, KEYS, None)
    gradient, output = gradient_of(narrow, variables, many, None, KEYS, None)
    assert output.updates == {}
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected), strict=True):
        assert (a.dtype, b.dtype) == (jnp.bfloat16, jnp.float32)
        error = jnp.linalg.norm(a.astype(jnp.float32) - b) / jnp.linalg.norm(b)
        assert float(error) < (0.004 if dtype == "float32" else 0.02)


def test_pieces_of_a_batch_are_summed_in_float32():
    whole, pieces = (task_of("A", GRADIENT_DTYPE="bfloat16", GRADIENT_ACCUMULATION=count) for count in (1, 2))
    variables = {"params": params_of("A", whole)}
    expected, _ = gradient_of(whole, variables, batch(), None, KEYS, None)
    gradient, _ = gradient_of(pieces, variables, batch(), None, KEYS, None)
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected), strict=True):
        assert a.dtype == jnp.bfloat16
        np.testing.assert_allclose(*(x.astype(jnp.float32) for x in (a, b)), atol=0.02 * float(jnp.abs(b).max()))


def test_rounding_in_integers_is_rounding():
    bits = jax.random.bits(jax.random.key(0), (100_000,), jnp.uint32)
    special = jnp.array([0.0, -0.0, jnp.inf, -jnp.inf, jnp.nan])
    x = jnp.concatenate([jax.lax.bitcast_convert_type(bits, jnp.float32), special])
    ours, jaxs = _to_bfloat16(x), x.astype(jnp.bfloat16)
    normal = np.asarray(jnp.isfinite(x) & (jnp.abs(x) < 3e38) & (jnp.abs(x) > 1e-37))
    assert normal.sum() > 90_000
    same = [jax.lax.bitcast_convert_type(y, jnp.uint16) for y in (ours, jaxs)]
    np.testing.assert_array_equal(np.asarray(same[0])[normal], np.asarray(same[1])[normal])
    np.testing.assert_array_equal(np.asarray(jnp.isnan(ours)), np.asarray(jnp.isnan(x)))
    assert ours[-5:-1].astype(jnp.float32).tolist() == [0.0, -0.0, np.inf, -np.inf]


def test_padding_of_vocabulary_and_heads_changes_nothing():
    """30522 tokens do not divide by 16, nor 40 heads by 32: rows and slots that are added compute nothing."""
    plain = task_of("A2")
    padded = task_of("A2", PAD_VOCAB_TO=7, PADDED_HEADS=8)
    params = params_of("A2", plain)
    expected, _ = mean_loss(plain, params)
    table = params["embedding"]["embedding_vm"]
    more = {**params, "embedding": {"embedding_vm": jnp.pad(table, ((0, 5), (0, 0)), constant_values=9.0)}}
    loss, _ = mean_loss(padded, more)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    rows = {row.key: row for row in padded.weight_table()}
    assert rows["embedding_vm"].shape == (21, 8)
    assert rows["embedding_vm"].size == 16 * 8


def test_decode2d_loads_the_checkpoint_of_its_training_run():
    rows = [
        [(row["path"], row["shape"]) for row in weight_summary(find(name)())["weights"]]
        for name in ("DenseLm175B32x32", "DenseLm175B8x8Decode2D")
    ]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("name", ["DenseLm128B8x8", "MoeLm8x2B", "MLPerfTrainBertDense2B"])
def test_real_text_takes_the_place_of_synthetic_rows(name):
    knobs = ["DATA=text", "VOCAB_SIZE=256", "DEVICE_MESH_SHAPE=1,1", "LOG_EVERY=1"]
    experiment = resolve(name, knobs, smoke=True)
    session = Session(experiment, jax.devices()[:1])
    with session.placed():
        step = session.functions.lower_step(session.abstract.batch, session.abstract.seed)
    losses, _ = train(session, 6, step)
    assert losses[-1] < losses[0]
