"""Keys that are read as having no effect on weights and logits have none in transformers."""

import pytest

from registry.hugging_face.families import FAMILIES
from tests.registry.hugging_face.small_configs import NEEDS, version_5
from tests.registry.hugging_face.test_every_key import without_effect

TORCH = "torch is not installed; pip install -c constraints.txt -e '.[torch]'"
VALUES = {
    "use_cache": [False],
    "bos_token_id": [5],
    "eos_token_id": [5, [5, 6]],
    "pad_token_id": [5],
    "id2label": [{0: "a", 1: "b", 2: "c"}],
    "label2id": [{"a": 0, "b": 1, "c": 2}],
    "problem_type": ["regression"],
    "output_attentions": [True],
    "output_hidden_states": [True],
    "attn_implementation": ["eager"],
    "_attn_implementation": ["eager"],
    "cache_implementation": ["static"],
    "output_router_logits": [True],
    "sliding_window_size": [2],
    "classifier_dropout": [0.5],
    "_name_or_path": ["elsewhere"],
    "transformers_version": ["4.40.0"],
    "_attn_implementation_autoset": [True],
    "gradient_checkpointing": [True],
    "tokenizer_class": ["LlamaTokenizer"],
    "unsloth_fixed": [True],
    "unsloth_version": ["2025.1.1"],
    "is_llama_config": [True],
    "max_sequence_length": [7],
    "pretraining_tp": [2],
}
# `max_window_layers` of qwen3_moe is not in its config class, the dtypes are those of stored weights, and `return_dict`
# is the form of the output (transformers 5.23 fails if it is false).
OTHERS = {"max_window_layers", "dtype", "torch_dtype", "return_dict"}


@pytest.mark.slow  # make test-slow installs torch
@pytest.mark.parametrize("model_type", FAMILIES)
def test_logits_and_weights_are_the_same(model_type):
    torch = pytest.importorskip("torch", reason=TORCH)
    transformers = pytest.importorskip("transformers", reason=NEEDS)
    tokens = torch.arange(24).reshape(2, 12) % 7
    content = version_5(model_type)

    def model_of(content):
        keys = {key: value for key, value in content.items() if key != "model_type"}
        config = transformers.CONFIG_MAPPING[model_type].from_dict(keys)
        return transformers.AutoModelForCausalLM.from_config(config).eval()

    def logits_of(model):
        with torch.no_grad():
            return model(tokens).logits

    torch.manual_seed(0)
    model = model_of(content)
    weights, expected = model.state_dict(), logits_of(model)
    assert expected.std() > 1e-3
    for key in without_effect(model_type) - OTHERS:
        for value in VALUES[key]:
            changed = model_of({**content, key: value})
            assert {name: w.shape for name, w in changed.state_dict().items()} == {
                n: w.shape for n, w in weights.items()
            }
            changed.load_state_dict(weights)
            torch.testing.assert_close(logits_of(changed), expected, msg=f"{key} = {value}")
