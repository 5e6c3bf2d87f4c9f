import flax.linen as nn
import pytest

from layers.errors import SpecError, UsageError
from layers.specs import P, Specs
from layers.weights.initializers import Constant
from layers.weights.weight import weight
from registry.build import build
from registry.checks import check
from registry.experiment import Experiment, cls_key, knobs_set_by, owner, register, stated_rows
from registry.experiments.tiny import StdlibTiny
from registry.explain import explain
from registry.overrides import override
from registry.resolve import resolve
from runners.modes.sample import windowed
from runners.widths.widths import of_width
from tests.support.references.models import Small


def test_a_subclass_sets_knobs_and_what_follows_follows():
    class Wide(StdlibTiny):
        MODEL_DIM = 256

    assert Wide().Task().model.stack.block.mixer.model_dim == 256
    assert Wide().Task().model.stack.block.ffn.hidden_dim == 1024
    assert StdlibTiny().Task().model.stack.block.mixer.model_dim == 128


def test_an_undeclared_knob_is_refused():
    with pytest.raises(UsageError, match=r"sets LEARNIN_RATE, which no base declares. Did you mean 'LEARNING_RATE'"):

        class Typo(StdlibTiny):
            LEARNIN_RATE = 1.0


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"MODEL_DIM": "256"}, "StdlibTiny.MODEL_DIM takes int above 0, not '256'"),
        ({"NORM": "layr"}, r"NORM takes one of 'rms', 'layer', not 'layr'. Did you mean 'layer'"),
        ({"NUM_KV_HEADS": 1.5}, "NUM_KV_HEADS takes int above 0 or None, or a pattern .*, not 1.5"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_when_the_class_is_made(knobs, message):
    with pytest.raises(UsageError, match=message):
        StdlibTiny.derive(**knobs)


def test_an_annotation_declares_a_knob():
    class New(StdlibTiny):
        NUM_STREAMS: int = 8

    assert New.knobs()["NUM_STREAMS"] == 8
    assert "NUM_STREAMS" not in StdlibTiny.knobs()


@pytest.mark.parametrize("value", [[1, 2], {"a": 1}, {1}])
def test_a_mutable_knob_is_refused(value):
    with pytest.raises(UsageError, match="can be changed in place"):
        StdlibTiny.derive(DEVICE_MESH_SHAPE=value)


def test_a_row_no_base_has_is_refused():
    with pytest.raises(
        UsageError, match=r"row 'ffn_inn_mf' that neither a layout nor a base has. Did you mean 'ffn_in_mf'"
    ):

        class Typo(StdlibTiny):
            WEIGHTS = Specs(ffn_inn_mf=P(None, None))


def test_rows_of_all_bases_are_merged():
    class In(StdlibTiny):
        WEIGHTS = Specs(ffn_in_mf=P(None, "model"))

    class Out(StdlibTiny):
        WEIGHTS = Specs(ffn_out_fm=P("model", None))

    class Again(Out):
        WEIGHTS = Out.WEIGHTS | Specs(ffn_out_fm=P(None, None))

    class Both(In, Again):
        pass

    assert Specs(ffn_in_mf=P(None, "model"), ffn_out_fm=P(None, None)) == Both.WEIGHTS
    assert Both().specs["ffn_in_mf"] == P(None, "model")
    assert Both().specs["embedding_vm"] == P("model", "data"), "the layout has all other rows"
    assert stated_rows(Again, "WEIGHTS") == ["ffn_out_fm"]
    assert stated_rows(Both, "WEIGHTS") == []


def test_configs_are_fresh_at_every_call():
    experiment = StdlibTiny()
    experiment.Task().model.stack.num_layers = 99
    assert experiment.Task().model.stack.num_layers == 4
    assert experiment.Task() is not experiment.Task()


def test_an_entry_needs_a_docstring():
    with pytest.raises(UsageError, match="needs a docstring"):

        @register
        class Silent(StdlibTiny):
            pass


@pytest.mark.parametrize(
    "name",
    [
        "tiny.StdlibTiny",
        "gpt.GptStdlib",
        "gpt2.Gpt2Small",
        "little_gpt.LittleGpt127M",
        "gshard.DenseLm8B2x2",
        "gshard.MoeLm8x2B",
        "wiki_bert.MLPerfBertDense13B32x32",
        "mu.MuTiny",
        "zero.ZeroTestStage1",
    ],
)
@pytest.mark.parametrize(("norm", "default"), [("rms", 1e-6), ("layer", 1e-5)])
def test_no_epsilon_is_the_default_of_the_norm(name, norm, default):
    model = build(resolve(name, [f"NORM={norm}", "NORM_EPSILON=none"]).Task(), "task").model
    block = getattr(model.stack.block, "blocks", (model.stack.block,))[-1]
    assert {layer.epsilon for layer in (model.final_norm, block.mixer_norm)} == {default}
    assert block.mixer.epsilon == 1e-6  # of norms inside attention


def test_owner_names_who_set_a_knob():
    assert owner(StdlibTiny, "SEQ_LEN") == "tiny.StdlibTiny"
    assert owner(StdlibTiny, "NUM_HEADS") == "templates.attention.AttentionKnobs"
    assert owner(StdlibTiny, "SEED") == cls_key(Experiment)
    assert owner(type(resolve("StdlibTiny", ["SEED=3"])), "SEED") == "--set"
    assert owner(type(resolve("StdlibTiny", smoke=True)), "NUM_LAYERS") == "Smoke()"
    assert owner(StdlibTiny.derive(SEED=3), "SEED") == "derive()"


def test_owner_names_the_flag_that_set_a_knob():
    experiment = resolve("MuTiny", ["NUM_LAYERS=3", "SEED=4"], smoke=True)
    with knobs_set_by("--mode=coord_check"):
        wide = of_width(experiment, 128, SEED=5, BATCH_SIZE=2)
    owners = {knob: owner(type(wide), knob) for knob in ("MODEL_DIM", "BATCH_SIZE", "SEED", "NUM_LAYERS", "BASE_WIDTH")}
    assert list(owners.values()) == ["--widths", "--mode=coord_check", "--set", "--set", "Smoke()"]
    steps = explain(wide, "MODEL_DIM")
    assert [step["where"].partition(",")[0] for step in steps] == [
        "--widths",
        "Smoke()",
        "MuTiny",
        "MuLm",
        "ModelKnobs",
    ]


def test_the_window_flag_owns_its_knob():
    assert owner(type(windowed(StdlibTiny(), 8)), "ATTENTION_WINDOW") == "--window"


class Shift(nn.Module):
    """A layer with a weight that no layout has."""

    SPECS = ("shift_m",)

    specs: Specs
    param_dtype: str = "float32"

    @nn.compact
    def __call__(self, x):
        return x + weight(self, "shift_m", x.shape[-1:], init=Constant(), role="bias")


class Shifted(Small):
    """Its norms only shift."""

    def norm(self):
        return self.layer(Shift)


def test_a_missing_spec_is_cured_by_the_advice():
    class Missing(Small):
        def norm(self):
            return self.layer(Shift)

    with pytest.raises(SpecError) as caught:
        check(Missing())
    advice = str(caught.value).split("`")[1]
    names = {"Base": Missing, "Specs": Specs, "P": P}
    exec(f"class Cured(Base):\n    {advice}", names)
    check(names["Cured"]())
    with pytest.raises(UsageError, match="--set changes existing rows; a class declares new ones"):
        override(Missing, ["WEIGHTS.shift_m=P(None)"])


@pytest.mark.parametrize(
    ("shape", "devices", "sizes"),
    [
        ((2, 4), 8, {"data": 2, "model": 4}),
        ((-1, 4), 8, {"data": 2, "model": 4}),
        ((-1, 1), 8, {"data": 8, "model": 1}),
        ((-1, 2), None, {"data": 1, "model": 2}),
    ],
)
def test_mesh_shapes(shape, devices, sizes):
    assert StdlibTiny.derive(DEVICE_MESH_SHAPE=shape)().mesh_shape(devices) == sizes


@pytest.mark.parametrize(
    ("shape", "devices", "message"),
    [
        (
            (8, 16),
            8,
            r"needs 128 devices \(DEVICE_MESH_SHAPE = \(8, 16\), got 8\)\. Try --smoke for a small form",
        ),
        ((-1, 3), 8, "needs a multiple of 3 devices"),
        ((-1, -1), 8, "at most one is -1"),
        ((0, 8), 8, "sizes are at least 1"),
        ((8,), 8, "differ in length"),
    ],
)
def test_bad_mesh_shapes(shape, devices, message):
    with pytest.raises(UsageError, match=message):
        StdlibTiny.derive(DEVICE_MESH_SHAPE=shape)().mesh_shape(devices)


@pytest.mark.parametrize(
    ("shape", "devices", "folded"),
    [((8, 16), 8, (2, 4)), ((8, 16), 1, (1, 1)), ((1, 1), 2, (2, 1)), ((-1, 1), 4, (4, 1)), ((16, 16), 6, (2, 3))],
)
def test_a_smoke_mesh_folds_onto_the_devices(shape, devices, folded):
    smoke = StdlibTiny.derive(DEVICE_MESH_SHAPE=shape, smoke=True)()
    assert tuple(smoke.mesh_shape(devices).values()) == folded


def with_config(change):
    class Changed(Small):
        def Task(self):
            config = super().Task()
            change(config)
            return config

    return Changed()


def share(config):
    config.model.stack.block.ffn_norm = config.model.stack.block.mixer_norm


class NewActivation(Small):
    ACTIVATIONS: Specs = Specs(gate_bsf=P(None, None, None))


BAD = {
    "a spec without weight": (
        lambda: override(Small, ["WEIGHTS.ffn_gate_mf=P(None,None)"])(),
        r"WEIGHTS of .*Small has a row 'ffn_gate_mf' = P\(None, None\), but no weight uses it",
    ),
    "a weight without spec": (
        Shifted,
        r"Weight 'shift_m' of Shift has no partition spec. .*`WEIGHTS: Specs = Specs\(shift_m=P\(None\)\)`",
    ),
    "an unknown axis": (
        lambda: Small.derive(WEIGHTS=Specs(ffn_in_mf=P("modle", None)))(),
        r"names 'modle'. Did you mean 'model'",
    ),
    "an unknown axis of a row without weight": (
        type("Heir", (type("Base", (Small,), {"WEIGHTS": Specs(ffn_gate_mf=P("modle", None))}),), {}),
        r"WEIGHTS.ffn_gate_mf = .* names mesh axis 'modle'",
    ),
    "a layout of another mesh": (
        lambda: Small.derive(LAYOUT="mup_2d")(),
        r"LAYOUT = mup_2d splits arrays over mesh axis 'X' \(got MESH_AXES = .*\)\. Set MESH_AXES=X,Y and",
    ),
    "a layout without a name": (
        lambda: Small.derive(LAYOUT="fully_shraded")(),
        r"LAYOUT = fully_shraded is unknown. Did you mean 'fully_sharded'",
    ),
    "an indivisible dimension": (
        lambda: Small.derive(DEVICE_MESH_SHAPE=(1, 3))(),
        r"is split by .* into 3 parts, which do not divide it",
    ),
    "an indivisible batch": (
        lambda: Small.derive(DEVICE_MESH_SHAPE=(8, 1), BATCH_SIZE=12)(),
        r"Dimension 12 of train.input: a batch of 12 rows",
    ),
    "an indivisible microbatch": (
        lambda: Small.derive(DEVICE_MESH_SHAPE=(4, 1), GRADIENT_ACCUMULATION=4)(),
        r"a batch of 8 rows in 4 micro-batches.*into 4 parts",
    ),
    "more micro-batches than rows": (
        lambda: Small.derive(GRADIENT_ACCUMULATION=3)(),
        "batch_size must be divisible by task.gradient_accumulation = 3",
    ),
    "a shared module": (
        lambda: with_config(share),
        r"task.model.stack.block.\w+ and task.model.stack.block.\w+ are the same config, which would tie weights",
    ),
    "an activation nobody places": (
        NewActivation,
        "ACTIVATIONS has a row 'gate_bsf', but no layer places such an array",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_check_refuses(name):
    make, message = BAD[name]
    with pytest.raises(SpecError if "spec" in name or "axis" in name else UsageError, match=message):
        check(make())


def test_check_accepts_what_is_right():
    check(Small())
    check(Small.derive(DEVICE_MESH_SHAPE=(2, 4))())
    check(
        Small.derive(
            DEVICE_MESH_SHAPE=(2, 4), GRADIENT_ACCUMULATION=4, FFN="gated", BIASES=("qkv", "ffn", "norm"), NORM="layer"
        )()
    )


@pytest.mark.parametrize(("name", "value"), [("num_layers", 6), ("num_heads", 8), ("data_path", None)])
def test_a_plain_attribute_in_the_place_of_a_knob_is_refused(name, value):
    with pytest.raises(
        UsageError, match=f"StdlibTiny sets {name}, which is not a knob. Write {name.upper()} = {value}."
    ):
        StdlibTiny.derive(**{name: value})
