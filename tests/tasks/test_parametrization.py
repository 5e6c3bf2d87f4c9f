"""Initial deviations and learning rates by width, and what the optimizer makes of them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from layers.errors import UsageError
from registry.build import build
from registry.templates.decoder import DecoderLm
from registry.templates.gshard_lm import BertEncoder, GShardLm, MoeLm
from registry.templates.mu_lm import MuLm, MuMultiQueryLm
from registry.templates.vq_lm import VQLm, VQMultiHeadLm, VQMultiQueryLm
from tasks.optimizers.optimizer import Clipping, Optimizer, RoleFactors
from tasks.optimizers.schedules import Schedule
from tasks.parametrization import Parametrization
from tests.support.references.models import Small, task_of

BIASES = ("qkv", "attention_out", "ffn", "norm", "head")
EVERYTHING = {"BIASES": BIASES, "NORM_SCALE": "vector", "EMBEDDING_NORM": True, "NUM_LAYERS": 2, "DATA": "synthetic"}


def rows_of(cls, **knobs):
    return {row.key: row for row in build(cls.derive(**knobs)().Task(), "task").weight_table()}


@pytest.mark.parametrize("width", [128, 256, 1024, 2048])
@pytest.mark.parametrize("base", [MuLm, MuMultiQueryLm])
@pytest.mark.parametrize("rule", ["mup", "abs_mup", "standard"])
def test_table_of_the_mu_transformer(width, base, rule):
    """The reference's table: standard deviations, and learning rates over the base rate, at BASE_WIDTH = 128."""
    multiple = 2.5
    rows = rows_of(base, **EVERYTHING, MODEL_DIM=width, FFN_MULTIPLE=multiple, PARAMETRIZATION=rule)
    deviation = {
        "embedding_vm": 1.0,
        "query_mnd": width**-0.5,
        "key_mkd": width**-0.5,
        "value_mkd": width**-0.5,
        "attention_out_ndm": width**-0.5,
        "ffn_in_mf": width**-0.5,
        "ffn_out_fm": (multiple * width) ** -0.5,
        "unembedding_mv": width**-0.5 if rule == "standard" else 1 / width,
    }
    fan_in = dict.fromkeys(deviation, width) | {"ffn_out_fm": multiple * width}
    assert {key for key, row in rows.items() if row.role not in ("bias", "scale")} == set(deviation)
    for key, row in rows.items():
        assert row.stddev == pytest.approx(deviation.get(key, 0.0)), key
        constant = rule == "standard" or row.role in ("embedding", "bias", "scale")
        expected = 1.0 if constant else 128 / width if rule == "mup" else 1 / fan_in[key]
        assert row.rate == pytest.approx(expected), key


def test_initial_values_have_the_deviations_of_the_table():
    task = build(MuLm.derive(**EVERYTHING, MODEL_DIM=256)().Task(), "task")
    drawn = jax.jit(lambda: task.init(jax.random.key(0), jax.tree.map(jnp.asarray, _tokens())))()
    leaves = jax.tree.leaves(drawn, is_leaf=lambda x: hasattr(x, "stddev"))
    assert len(leaves) == len(list(task.weight_table()))
    for leaf in leaves:
        assert float(jnp.std(leaf.value)) == pytest.approx(leaf.stddev, rel=0.02), leaf.key


def _tokens():
    from tasks.batch import empty_batch

    return empty_batch(1, 1)


@pytest.mark.parametrize(
    ("choice", "deviation"), [("inverse_fan_in", 1 / 256), ("fan_in", 1 / 16), ("zero", 0.0), (None, 1 / 256)]
)
def test_choices_of_the_head(choice, deviation):
    row = rows_of(MuLm, MODEL_DIM=256, UNEMBEDDING_INIT=choice)["unembedding_mv"]
    assert (row.stddev, row.rate) == (deviation, 0.5)


def test_zero_initial_values():
    rows = rows_of(MuLm, QUERY_INIT="zero", BRANCH_INIT="zero")
    zero = {key for key, row in rows.items() if row.stddev == 0}
    assert zero == {"query_mnd", "attention_out_ndm", "ffn_out_fm"}


def test_relative_and_absolute_rates_agree_where_they_should():
    for width in (128, 512):
        relative = rows_of(MuLm, MODEL_DIM=width)
        absolute = rows_of(MuLm, MODEL_DIM=width, PARAMETRIZATION="abs_mup")
        for key, row in relative.items():
            if row.role in ("hidden", "output") and key != "ffn_out_fm":
                assert row.rate == pytest.approx(128 * absolute[key].rate)
    base = rows_of(MuLm, MODEL_DIM=128)
    assert {row.rate for row in base.values()} == {1.0}


def test_a_fixed_deviation_falls_with_the_width_from_the_base():
    for multiple in (1, 4):
        rows = rows_of(
            Small, PARAMETRIZATION="mup", BASE_WIDTH=16, MODEL_DIM=16 * multiple, INIT_STDDEV=0.02, NUM_HEADS=4
        )
        assert rows["ffn_in_mf"].stddev == pytest.approx(0.02 * multiple**-0.5)
        assert rows["embedding_vm"].stddev == 0.02
        assert rows["norm_scale_m"].rate == 1


def test_a_tied_head_takes_the_factor_on_its_logits():
    for multiple in (1, 4):
        config = Small.derive(PARAMETRIZATION="mup", BASE_WIDTH=16, MODEL_DIM=16 * multiple)().Task()
        embedding = config.model.embedding
        assert embedding.logits_scale == 1 / multiple
        assert embedding.initializer.stddev == 0.25  # of the base, 16^-1/2
        assert config.model.stack.block.mixer.scale == 1 / (4 * multiple)  # heads grow here: 1 / their size
    for cls, one in ((GShardLm, 8192**-0.5), (VQLm, 1.0)):
        sizes = {"MODEL_DIM": 8192, "PARAMETRIZATION": "mup"}
        scales = [cls.derive(**sizes, BASE_WIDTH=base)().Task().model.embedding.logits_scale for base in (8192, 2048)]
        assert scales[0] == pytest.approx(one)
        # Under N(0, 1) rows, logits have the size one * width^1/2 at first, and move in proportion to one * width.
        assert scales[1] * 4 == pytest.approx(2 * one if cls is GShardLm else one)


def test_adafactor_moves_in_proportion_to_the_weight():
    rows = rows_of(
        Small, PARAMETRIZATION="mup", BASE_WIDTH=16, MODEL_DIM=64, OPTIMIZER="adafactor", TIE_EMBEDDINGS=False
    )
    assert (rows["ffn_in_mf"].rate, rows["unembedding_mv"].rate, rows["embedding_vm"].rate) == (0.5, 1.0, 1.0)


@pytest.mark.parametrize(
    ("knobs", "named"),
    [
        ({"BASE_WIDTH": None}, "needs BASE_WIDTH"),
        ({"BASE_WIDTH": 24}, "BASE_WIDTH must divide MODEL_DIM = 64 .*got 24"),
        ({"BASE_WIDTH": 128}, "BASE_WIDTH must divide MODEL_DIM = 64 .*got 128"),
        ({"OPTIMIZER": "sgd"}, "adamw, lion, muon or adafactor"),
        (
            {"OPTIMIZER": "adafactor", "UNEMBEDDING_INIT": "fan_in", "TIE_EMBEDDINGS": False},
            "Set UNEMBEDDING_INIT to inverse_fan_in or zero",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(knobs, named):
    with pytest.raises(UsageError, match=named) as refused:
        task_of(**{"PARAMETRIZATION": "mup", "BASE_WIDTH": 16, "MODEL_DIM": 64} | knobs)
    assert "\n" not in str(refused.value)


def test_widths_keep_heads_and_proportions():
    wide = MuMultiQueryLm.of_width(4096)()
    assert (wide.num_heads, wide.head_dim, wide.NUM_KV_HEADS, wide.hidden_dim) == (32, 128, 1, 20480)
    wide = GShardLm.of_width(4096)()
    assert (wide.num_heads, wide.head_dim, wide.hidden_dim) == (64, 128, 32768)
    wide = Small.derive(NUM_KV_HEADS=2).of_width(64)()
    assert (wide.num_heads, wide.head_dim, wide.NUM_KV_HEADS, wide.hidden_dim) == (16, 4, 8, 128)
    assert VQLm.derive(MODEL_DIM=256).of_width(512)().value_dim == 1024
    assert VQMultiHeadLm.derive(MODEL_DIM=256).of_width(512)().num_heads == 4
    with pytest.raises(UsageError, match="NUM_HEADS = 4 at MODEL_DIM = 16 is not an integer when scaled to width 18"):
        Small.of_width(18)


def updates_of(gradient, steps=2, **fields):
    """What two updates with the same gradient do to the weights of `Small` at four times its base."""
    task = task_of(PARAMETRIZATION="mup", BASE_WIDTH=16, MODEL_DIM=64, TIE_EMBEDDINGS=False)
    common = {"clipping": Clipping(), "role_factors": RoleFactors(), "learning_rate": 0.1, "schedule": Schedule()}
    chosen = Optimizer(**common | {"parametrization": task.optimizer.parametrization} | fields)
    table = dataclasses.replace(task, optimizer=chosen).weight_table()
    params = table.tree(lambda row: jnp.full(row.shape, 2.0))["params"]
    optimizer = chosen.build(table)
    state = optimizer.init(params)
    gradient = jax.tree.map(lambda x: jnp.full(x.shape, gradient), params)
    moved = params
    for _ in range(steps):
        updates, state = optimizer.update(gradient, state, params)
        moved = optax.apply_updates(moved, updates)
    rows = {row.path: row for row in table}
    flat = jax.tree_util.tree_leaves_with_path({"params": moved})
    return {rows["/".join(part.key for part in path)].role: float(np.ravel(leaf)[0]) - 2.0 for path, leaf in flat}


@pytest.mark.parametrize(
    ("scale", "hidden", "embedding"),
    [
        # Two updates of rate 0.1 and 0.1 * 0.5, a quarter of it in hidden weights; the weight is 2, decay 0.01.
        ("learning_rate", 0.25 * 0.15 * 1.02, 0.15 * 1.02),
        ("base_learning_rate", 0.15 * (0.25 + 0.02), 0.15 * 1.02),
        ("schedule", 0.25 * 0.15 + 1.5 * 0.02, 0.15 + 1.5 * 0.02),
        ("none", 0.25 * 0.15 + 2 * 0.02, 0.15 + 2 * 0.02),
    ],
)
def test_what_decay_is_multiplied_by(scale, hidden, embedding):
    schedule = Schedule(kind="linear", decay_steps=2)
    moved = updates_of(1.0, weight_decay=0.01, decay_scale=scale, schedule=schedule)
    assert moved["hidden"] == pytest.approx(-hidden, rel=1e-4)
    assert moved["output"] == pytest.approx(-hidden, rel=1e-4)
    assert moved["embedding"] == pytest.approx(-embedding, rel=1e-4)
    assert moved["scale"] == pytest.approx(-0.15, rel=1e-4)  # not decayed


def test_epsilon_that_falls_with_the_rate():
    """A gradient the size of epsilon: update rate * g / (g + c epsilon), c being the weight's factor."""
    for scaled, factor in ((True, 0.25), (False, 1.0)):
        moved = updates_of(1e-3, steps=1, epsilon=1e-3, scale_epsilon=scaled)
        assert moved["hidden"] == pytest.approx(-0.1 * 0.25 / (1 + factor), rel=1e-4)
        assert moved["embedding"] == pytest.approx(-0.1 / 2, rel=1e-4)


def test_first_moments_in_bfloat16():
    for method in ("adamw", "lion", "sgd"):
        task = task_of(OPTIMIZER=method, MOMENT_DTYPE="bfloat16")
        table = task.weight_table()
        state = jax.eval_shape(task.optimizer.build(table).init, table.abstract["params"])
        kinds = [leaf.dtype.name for leaf in jax.tree.leaves(state) if leaf.shape]
        assert kinds.count("bfloat16") == len(list(table))
        assert kinds.count("float32") == (len(list(table)) if method == "adamw" else 0)


def test_warm_up_from_a_share_of_the_peak():
    ends = {"start_factor": 1e-4, "end_factor": 1e-4, "first_step": 0}
    schedule = Schedule(kind="linear", warmup_steps=10, decay_steps=20, **ends)
    values = [float(schedule(step)) for step in (0, 5, 10, 15, 20, 30)]
    np.testing.assert_allclose(values, [1e-4, 0.50005, 1.0, 0.50005, 1e-4, 1e-4], rtol=1e-5)


def test_standard_is_the_width_of_one_base():
    assert Parametrization().rate("hidden", 64) == 1
    assert Parametrization(rule="mup", width=64, base_width=64).rate("hidden", 64) == 1


FAMILIES = {
    "decoder": (DecoderLm, {"POSITIONS": "learned", "NORM": "layer", "BIASES": BIASES}),
    "decoder, one head": (DecoderLm, {"NUM_HEADS": 1, "TIE_EMBEDDINGS": False, "INIT_STDDEV": 0.02}),
    "mu": (MuLm, {"NORM_SCALE": "vector", "QK_NORM": "rms", "BIASES": BIASES, "EMBEDDING_NORM": True}),
    "mu, tied": (MuLm, {"TIE_EMBEDDINGS": True, "BIASES": BIASES, "NORM": "layer", "NORM_SCALE": "vector"}),
    "gshard": (GShardLm, {}),
    "gshard, padded heads": (GShardLm, {"PADDED_HEADS": 256, "OPTIMIZER": "adamw"}),
    "experts": (MoeLm, {"FFN": ("gated_experts", "gated"), "EXPERT_DIM": 512, "NUM_LAYERS": 2, "BATCH_SIZE": 8}),
    "bert": (BertEncoder, {}),
    "vq": (VQLm, {"NORM_SCALE": "vector", "BIASES": ("ffn", "norm", "head"), "POSITIONS": "scaled_sinusoidal"}),
    "vq, values": (VQLm, {"VALUE_DIM": 256, "TIE_EMBEDDINGS": False}),
    "vq, mha": (VQMultiHeadLm, {"VALUE_DIM": 64}),
    "vq, mqa": (VQMultiQueryLm, {}),
    "vq, full": (VQLm, {"MIXER": "distance", "OPTIMIZER": "lion"}),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_weight_of_every_family_follows_the_width(name):
    """Four times as wide: fan-in, deviation and rate of each row change as its role requires, and of no other."""
    base, knobs = FAMILIES[name]
    start = 1024 if issubclass(base, GShardLm) else 256
    cls = base.derive(**{"PARAMETRIZATION": "mup", "BASE_WIDTH": start, "NUM_LAYERS": 2} | knobs)
    narrow, wide = (
        {row.path: row for row in build(cls.of_width(width)().Task(), "task").weight_table()}
        for width in (start, 4 * start)
    )
    assert set(narrow) == set(wide)
    relative = cls.OPTIMIZER == "adafactor"
    for path, row in narrow.items():
        other = wide[path]
        ratio = lambda of, a=row, b=other: getattr(b, of) / getattr(a, of) if getattr(a, of) else 1.0
        if row.role in ("hidden", "output"):
            assert ratio("fan_in") == 4, path
            hidden = row.role == "hidden"
            assert ratio("stddev") == pytest.approx(1 / 2 if hidden else 1 / 4), path
            assert ratio("rate") == pytest.approx({False: 1 / 4, True: 1 / 2 if hidden else 1}[relative]), path
        elif row.role != "state":
            assert (ratio("stddev"), ratio("rate")) == (pytest.approx(1), 1), path
            assert row.rate == 1


@pytest.mark.parametrize("start", ["drawn", "zero"])
def test_updates_of_adafactor_fall_as_those_of_adam_would(start):
    """Also below the floor of a weight's own size, where a wide head lies from the start, and weights of zero."""
    moved = {}
    for width in (16, 64, 4096):
        knobs = {"PARAMETRIZATION": "mup", "BASE_WIDTH": 16, "MODEL_DIM": width, "HEAD_DIM": 16, "NUM_HEADS": 1}
        task = task_of(**knobs, FFN_DIM=2, OPTIMIZER="adafactor", TIE_EMBEDDINGS=False, CLIP_NORM=None)
        table = task.weight_table()
        optimizer = task.optimizer.build(table)
        rows = table.tree(lambda row: row)["params"]
        weights = jax.tree.map(lambda row: jnp.full(row.shape, row.stddev if start == "drawn" else 0.0), rows)
        gradient = jax.tree.map(jnp.ones_like, weights)
        updates, _ = optimizer.update(gradient, optimizer.init(weights), weights)
        flat = zip(jax.tree.leaves(rows), jax.tree.leaves(updates), strict=True)
        moved[width] = {
            row.key: float(jnp.abs(u).mean()) for row, u in flat if row.key in ("query_mnd", "unembedding_mv")
        }
    for key in ("query_mnd", "unembedding_mv"):
        assert moved[64][key] == pytest.approx(moved[16][key] / 4, rel=1e-3), key
        assert moved[4096][key] == pytest.approx(moved[16][key] / 256, rel=1e-3), key


def test_absolute_rates_need_no_base_where_nothing_asks_for_one():
    rows = rows_of(Small, PARAMETRIZATION="abs_mup", TIE_EMBEDDINGS=False)
    assert rows["ffn_in_mf"].rate == 1 / 16
    with pytest.raises(UsageError, match="needs BASE_WIDTH"):
        rows_of(Small, PARAMETRIZATION="abs_mup", TIE_EMBEDDINGS=True)


def test_a_role_without_learning_and_epsilon_by_the_rate():
    moved = updates_of(1e-3, epsilon=1e-3, scale_epsilon=True, role_factors=RoleFactors(embedding=0.0))
    assert moved["embedding"] == 0
