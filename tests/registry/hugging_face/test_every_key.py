"""No key of a config.json is ignored: each is deleted and changed in turn, and compared with transformers' reading."""

import copy
from typing import Any

import pytest

from layers.errors import UsageError
from registry.hugging_face.families import FAMILIES, SHARED
from registry.hugging_face.keys import Without
from tests.registry.hugging_face.small_configs import SCALINGS, model_of, normalized, version_4, version_5

FORMS = {"version 5": version_5, "version 4": version_4}
# Keys that have no effect in the small config because of another key.
OVERRIDDEN = {
    "gemma3_text": {"_sliding_window_pattern"},  # layer_types
    "qwen2": {"max_window_layers"},  # layer_types
    "qwen3": {"max_window_layers", "sliding_window"},  # use_sliding_window
    "qwen3_moe": {"sliding_window", "use_sliding_window"},  # each needs the other
}


def without_effect(model_type: str) -> set[str]:
    """Returns the keys that are stated to have no effect on weights and logits."""
    relations = (*SHARED, *FAMILIES[model_type].relations)
    return {name for relation in relations if isinstance(relation, Without) for name in relation.names}


def compared(content: dict[str, Any], key: str) -> dict[str, Any] | None:
    """Returns the model of a config, equal to that of transformers' reading; None if it is refused by its key."""
    try:
        found = model_of(content)
    except UsageError as error:
        if key not in str(error):
            pytest.fail(f"{error} does not name {key}")
        return None
    try:
        expected = model_of(normalized(content))
    except UsageError:
        raise
    except Exception:  # transformers' own refusal, of many types
        return found
    assert found == expected, key
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_missing_key_has_the_value_that_transformers_gives_it(model_type, form):
    content = FORMS[form](model_type)
    for key in content:
        compared({name: value for name, value in content.items() if name != key}, key)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_changed_key_changes_the_model_or_is_refused(model_type, form):
    content = FORMS[form](model_type)
    before, changed = model_of(content), set()
    for key, value in content.items():
        for other in others(value):
            found = compared({**content, key: other}, key)
            if found != before:
                changed.add(key)
            if key in without_effect(model_type):
                assert found in (before, None), key
    assert content.keys() - changed <= without_effect(model_type) | OVERRIDDEN.get(model_type, set())


def others(value: Any) -> list[Any]:
    """Returns values that a key does not have: of the same type, of other types, and null."""
    found: list[Any] = [None, "other", True, False, 0, -1, 7, 0.25, 24, [], ["full_attention"] * 4, {}, {"factor": 2.0}]
    if isinstance(value, int | float) and not isinstance(value, bool):
        found += [2 * value, value + 1]
    if isinstance(value, list):
        found += [value[:-1], value[::-1], [*value[:-1], "other"]]
    if isinstance(value, dict):
        found += [{**value, "rope_type": "dynamic"}, {**value, "rope_theta": 3e4}, {**value, "factor": 2.0}]
    return [each for each in found if each != value or type(each) is not type(value)]


@pytest.mark.parametrize("model_type", FAMILIES)
def test_an_unknown_key_is_refused_with_the_closest_one(model_type):
    with pytest.raises(UsageError, match="has the key hidden_sizes, which is unknown") as error:
        model_of({**version_4(model_type), "hidden_sizes": 3})
    assert "Did you mean 'hidden_size'" in str(error.value)
    with pytest.raises(UsageError, match="has the key unlike_any"):
        model_of({**version_5(model_type), "unlike_any": None})


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("model_type", FAMILIES)
def test_both_forms_of_rotary_positions_are_one_model(model_type, scaling):
    old, new = version_4(model_type, scaling), version_5(model_type, scaling)
    assert "rope_parameters" in new
    assert model_of(old) == model_of(new)
    if scaling != "default":
        named = copy.deepcopy(old)
        named["rope_scaling"]["type"] = named["rope_scaling"]["rope_type"]
        assert model_of(named) == model_of(old)
        del named["rope_scaling"]["rope_type"]
        assert model_of(named) == model_of(old)


@pytest.mark.parametrize("scaling", ["linear", "llama3", "yarn"])
@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma3_text", "gpt_neox"])
def test_every_key_of_rope_scaling_counts(model_type, scaling):
    content = version_4(model_type, scaling)
    inner = content["rope_scaling"]
    before = model_of(content)
    for key, value in inner.items():
        compared({**content, "rope_scaling": {k: v for k, v in inner.items() if k != key}}, "rope_scaling")
        for other in (None, "other", 3.0, True):
            if other != value:
                assert compared({**content, "rope_scaling": {**inner, key: other}}, "rope_scaling") != before
    assert compared({**content, "rope_scaling": {**inner, "unknown": 1}}, "rope_scaling") is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "phi3"}, "model_type = \"phi3\" in 'config.json' is not supported."),
        ({"model_type": "qwen4"}, "Did you mean 'qwen3' or 'qwen2'"),
        ({"model_type": "gemma3", "text_config": {}}, "its models read images or sound, too. Choose a model"),
        ({"rope_scaling": {"rope_type": "linear", "type": "yarn", "factor": 2.0}}, "rope_type and type differ"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "must be linear, llama3 or yarn (got dynamic)"),
        ({"rope_scaling": {"type": "linear"}}, "Scaling of type linear needs factor"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, 'Its factor must be a finite number above 0 (got "2").'),
        ({"architectures": ["LlamaForSequenceClassification"]}, "Only LlamaForCausalLM is"),
        ({"hidden_size": "32"}, "hidden_size in 'config.json' must be of type int (got \"32\")"),
        ({"hidden_act": "swiglu"}, 'hidden_act = "swiglu"'),
        ({"rope_interleaved": True}, "rope_interleaved = true in 'config.json' is not supported for llama models."),
        ({"quantization_config": {"bits": 4}}, "Quantized weights are not supported."),
        ({"rope_theta": float("inf")}, "rope_theta in 'config.json' must be finite (got Infinity)."),
        ({"rope_theta": float("nan")}, "rope_theta in 'config.json' must be finite (got NaN)."),
        ({"rope_theta": 10**400}, "rope_theta in 'config.json' must be finite"),
        ({"rope_theta": 0}, "rope_theta = 0 in 'config.json' is not supported for llama models. It must be above 0."),
        ({"rms_norm_eps": -1e-6}, "rms_norm_eps = -1e-06 in 'config.json' is not supported for llama models. It must"),
        ({"attention_dropout": -0.1}, "It must be at least 0."),
        ({"initializer_range": -0.1}, "It must be at least 0."),
    ],
)
def test_refusals_of_a_llama(change, message):
    with pytest.raises(UsageError) as error:
        model_of({**version_4("llama"), **change})
    assert message in str(error.value)


@pytest.mark.parametrize("form", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("yarn", {"factor": 0}, "Its factor must be a finite number above 0 (got 0)."),
        ("yarn", {"factor": float("nan")}, "Its factor must be a finite number above 0 (got NaN)."),
        ("yarn", {"beta_fast": 0.5}, "Its beta_slow must be below beta_fast = 0.5 (got 1)."),
        ("yarn", {"attention_factor": -1}, "Its attention_factor must be a finite number above 0 (got -1)."),
        ("yarn", {"mscale": -1, "mscale_all_dim": 1}, "Its mscale must be a finite number above 0 (got -1)."),
        ("yarn", {"original_max_position_embeddings": 0.5}, "must be an integer (got 0.5)."),
        ("llama3", {"low_freq_factor": 4}, "Its low_freq_factor must be below high_freq_factor = 4 (got 4)."),
        ("llama3", {"low_freq_factor": 0}, "Its low_freq_factor must be a finite number above 0 (got 0)."),
        ("linear", {"rope_theta": 0}, "Its rope_theta must be a finite number above 0 (got 0)."),
        ("linear", {"partial_rotary_factor": 0.5}, "Its partial_rotary_factor must be 1."),
    ],
)
def test_wrong_numbers_of_scaling_are_refused_by_their_key(form, kind, change, message):
    content = version_4("llama")
    del content["rope_scaling"]
    with pytest.raises(UsageError) as error:
        model_of({**content, form: {**(SCALINGS[kind] or {}), **change}})
    assert f"{form} = " in str(error.value)
    assert message in str(error.value)


def test_objects_in_the_place_of_types_of_layers_are_refused():
    for given in ([["x"]] * 4, [{}] * 4, [None] * 4):
        with pytest.raises(UsageError, match="It must have full_attention or sliding_attention num_hidden_layers = 4"):
            model_of({**version_4("qwen2"), "layer_types": given})
    with pytest.raises(UsageError, match=r"rope_parameters = .* It must have full_attention and sliding_attention"):
        model_of({**version_4("gemma3_text"), "rope_parameters": {"full_attention": 3}})


def test_null_is_the_derived_value():
    content = version_4("llama")
    plain = {name: value for name, value in content.items() if name not in ("head_dim", "num_key_value_heads")}
    assert model_of({**plain, "head_dim": None, "num_key_value_heads": None}) == model_of(plain)
    assert model_of({**version_4("mistral"), "sliding_window": None})["ATTENTION_WINDOW"] is None
    untyped = {name: value for name, value in version_4("qwen2").items() if name != "layer_types"}
    assert model_of({**untyped, "max_window_layers": 1})["ATTENTION_WINDOW"] == (None, 8, 8, 8)
    assert model_of({**untyped, "max_window_layers": 4})["ATTENTION_WINDOW"] is None
