from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layers.errors import UsageError
from layers.specs import P
from registry.build import build, from_json, to_json
from registry.experiments.tiny import StdlibTiny
from registry.resolve import resolve
from registry.values import Positive, parse, read, show

scalars = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.none())


@given(st.one_of(scalars, st.lists(scalars, min_size=1).map(tuple)))
def test_values_are_read_as_they_are_shown(value):
    assert parse(show(value)) == value
    assert type(parse(show(value))) is type(value)


@given(
    st.lists(st.one_of(st.none(), st.sampled_from(["data", "model"]), st.just(("data", "model")))).map(lambda s: P(*s))
)
def test_specs_are_read_as_they_are_shown(spec):
    assert parse(show(spec)) == spec


@given(st.text())
def test_any_text_is_read_without_an_error(text):
    parse(text)


@pytest.mark.parametrize(("text", "mesh"), [("2x4", (2, 4)), ("*x1", (-1, 1)), ("2x*", (2, -1)), ("16x32", (16, 32))])
def test_a_mesh_is_read_as_tables_print_it(text, mesh):
    assert mesh == resolve("StdlibTiny", [f"DEVICE_MESH_SHAPE={text}"]).DEVICE_MESH_SHAPE


def test_only_sizes_are_joined_by_x():
    assert resolve("StdlibTiny", ["NO_DECAY=2x4"]).NO_DECAY == ("2x4",)
    with pytest.raises(UsageError, match="DEVICE_MESH_SHAPE takes a tuple of int, not '2x'"):
        resolve("StdlibTiny", ["DEVICE_MESH_SHAPE=2x"])


@pytest.mark.parametrize(
    ("text", "hint", "value"),
    [
        ("1e3", int, 1000),
        ("3", float, 3.0),
        ("none", int | None, None),
        ("7", int | None, 7),
        ("0x10", int | None, 16),
        ("2,4", tuple[int, ...], (2, 4)),
        ("8", tuple[int, ...], (8,)),
        ("true", bool, True),
        ("8", Positive | None, 8),
        ("a,b", tuple[str, ...], ("a", "b")),
        ("1.10,(2)", tuple[str, ...], ("1.10", "2")),
        ("'a,b'", tuple[str, ...], ("a,b",)),
        ("('a',1),('b',0.5)", tuple[tuple[str, float], ...], (("a", 1.0), ("b", 0.5))),
        ("None", Literal["none", "full"], "none"),
        ("7", int | str, 7),
    ],
)
def test_typed(text, hint, value):
    found = read(text, hint, "KNOB")
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", ["1.10", "0x10", "1_000", "007", "1e3", "true", "1,2", "P('data')", "plain", " a "])
@pytest.mark.parametrize("hint", [str, str | None])
def test_a_text_is_kept_as_written(text, hint):
    assert read(text, hint, "KNOB") == text
    assert read(repr(text), hint, "KNOB") == text, "quotes are accepted"
    assert read("none", hint, "KNOB") == ("none" if hint is str else None)


def test_text_knobs_and_fields_keep_their_text():
    texts = ["DATASET_CONFIG=1.10", "DATA_COLUMN=0x10", "train.input.source.path=1_000"]
    experiment = resolve("StdlibTiny", texts)
    assert (experiment.DATASET_CONFIG, experiment.DATA_COLUMN) == ("1.10", "0x10")
    assert experiment.Train().input.source.path == "1_000"


@pytest.mark.parametrize("value", [0, -1])
def test_sizes_are_above_zero(value):
    sizes = ["NUM_LAYERS", "MODEL_DIM", "NUM_HEADS", "HEAD_DIM", "FFN_DIM", "FFN_MULTIPLE", "SEQ_LEN", "BATCH_SIZE"]
    for knob in sizes:
        with pytest.raises(UsageError, match=rf"^{knob} takes (int|float) above 0( or None)?, not {value}\.$"):
            resolve("StdlibTiny", [f"{knob}={value}"])
        with pytest.raises(UsageError, match=f"{knob} takes"):
            StdlibTiny.derive(**{knob: value})


@pytest.mark.parametrize(
    ("text", "hint"),
    [("1.5", int), ("true", int), ("1", bool), ("x", float), ("none", int), ("1,a", tuple[int, ...]), ("0", Positive)],
)
def test_mistyped(text, hint):
    with pytest.raises(UsageError, match="KNOB takes"):
        read(text, hint, "KNOB")


def test_a_knob_changes_all_that_depends_on_it():
    experiment = resolve("StdlibTiny", ["MODEL_DIM=64", "DEVICE_MESH_SHAPE=2,4"])
    assert experiment.Task().model.stack.block.ffn.hidden_dim == 256
    assert experiment.mesh_shape() == {"data": 2, "model": 4}
    assert experiment.overrides == ("MODEL_DIM=64", "DEVICE_MESH_SHAPE=2,4")


def test_config_paths():
    settings = [
        "task.optimizer.learning_rate=1",
        "task.optimizer.schedule.kind=linear",
        "task.loss_chunk=16",
        "task.loss_chunk=none",
        "task.optimizer.clipping.value=0.5",
        "task.model.stack.block.ffn.specs.ffn_in_mf=P(None,None)",
        "train.num_steps=7",
        "test.inputs.validation.max_rows=3",
    ]
    experiment = resolve("StdlibTiny", settings)
    for _ in range(2):  # at every call
        config = experiment.Task()
        assert config.optimizer.learning_rate == 1.0
        assert config.optimizer.schedule.kind == "linear"
        assert config.loss_chunk is None
        assert config.optimizer.clipping.value == 0.5
        assert config.model.stack.block.ffn.specs["ffn_in_mf"] == P(None, None)
    assert experiment.Train().num_steps == 7
    assert experiment.Test().inputs["validation"].max_rows == 3
    assert experiment.Test().inputs["test"].max_rows is None


def test_held_out_data_follows_the_training_path():
    """A run on a user's file is judged on that file."""
    experiment = resolve("StdlibTiny", ["train.input.source.path=/some/file"])
    assert experiment.Test().inputs["validation"].source.path == "/some/file"
    assert experiment.Test().inputs["validation"].split == "validation"


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("LEARNINGRATE=3", "no knob or config 'LEARNINGRATE'. Did you mean 'LEARNING_RATE'"),
        ("tsk.z_loss=1", "no knob or config 'tsk'. Did you mean 'task'"),
        ("task.optimzer.learning_rate=1", "Unknown field 'optimzer' in task. Did you mean 'optimizer'"),
        (
            "task.optimizer.learning_rat=1",
            "Unknown field 'learning_rat' in task.optimizer. Did you mean 'learning_rate'",
        ),
        ("train.num_steps.x=1", "train.num_steps is one value, 1200, without fields"),
        ("task.optimizer=1", "task.optimizer is a config, not a field. Set one of its fields"),
        ("task=1", "'task' is a config, not a field"),
        ("NUM_LAYERS=two", "NUM_LAYERS takes int above 0, not 'two'"),
        ("NUM_LAYERS.x=2", "NUM_LAYERS is one value"),
        ("task.z_loss=high", "task.z_loss takes float, not 'high'"),
        ("POSITIONS=rotory", r"POSITIONS takes one of 'rotary'.*Did you mean 'rotary'"),
        ("OPTIMIZER=adam", r"OPTIMIZER takes one of .*Did you mean 'adamw'"),
        ("WEIGHTS.ffn_in=P()", "Unknown row 'ffn_in' in 'WEIGHTS.ffn_in'. Did you mean 'ffn_in_bias_f' or 'ffn_in_mf'"),
        ("WEIGHTS.ffn_in_mf=data", r"takes a spec, as in WEIGHTS.ffn_in_mf=P\('data', 'model'\)"),
        ("WEIGHTS.ffn_in_mf=P('data')", "must have one entry per dimension of 'mf'"),
        ("NUM_LAYERS", "is not of the form PATH=VALUE"),
        ("=3", "is not of the form PATH=VALUE"),
    ],
)
def test_bad_overrides(assignment, message):
    with pytest.raises(UsageError, match=message):
        resolve("StdlibTiny", [assignment])


@pytest.mark.parametrize(
    ("assignment", "root", "message"),
    [
        ("train.num_steps=0", "Train", "train: num_steps must be at least 1 .got 0"),
        ("WARMUP_STEPS=5000", "Task", "NUM_STEPS must be above WARMUP_STEPS = 5000"),
        ("NUM_HEADS=3", "Task", "NUM_HEADS must divide MODEL_DIM = 128 .got 3"),
    ],
)
def test_values_that_no_constructor_takes(assignment, root, message):
    with pytest.raises(UsageError, match=message):
        build(getattr(resolve("StdlibTiny", [assignment]), root)(), root.lower())


def test_configs_survive_json():
    config = resolve("StdlibTiny").Task()
    assert from_json(to_json(config)) == config
    assert build(from_json(to_json(config)), "task").weight_table().rows == build(config, "task").weight_table().rows


@pytest.mark.parametrize("opening", ["(", "[", "-", "not ", "{1:", "P("])
def test_values_that_are_nested_too_deeply_are_texts(opening):
    text = opening * 20_000
    assert parse(text) == text
    with pytest.raises(UsageError, match=r"MODEL_DIM takes an integer above 0|MODEL_DIM takes"):
        resolve("tiny.StdlibTiny", [f"MODEL_DIM={text}"])


def test_an_integer_beyond_all_floats():
    with pytest.raises(UsageError, match="LEARNING_RATE takes"):
        resolve("tiny.StdlibTiny", [f"LEARNING_RATE=1{'0' * 400}"])
