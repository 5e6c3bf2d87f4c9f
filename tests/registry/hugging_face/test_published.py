"""Numbers of weights of published models: those in the docstrings, the totals, and of the same models in PyTorch."""

import re

import pytest

from layers.errors import UsageError
from registry import index
from registry.hugging_face.entry import family_of
from registry.hugging_face.families import FAMILIES, from_content
from registry.hugging_face.keys import value_of
from registry.hugging_face.representation import representing_family
from registry.resolve import find, resolve
from registry.tool import totals
from tests.registry.hugging_face.small_configs import NEEDS, model_of, normalized

EXTENDED = [name for name in sorted(index.entries()) if family_of(find(name)) is not None]
ENTRIES = [name for name in EXTENDED if not name.startswith("mix.")]  # those have parts of several families
H100 = 80e9  # bytes of memory
DERIVED = ("ATTENTION_SCALE", "ROTARY_HIGH")  # None is a value that the key states


def documented(name: str) -> int:
    """Returns the number with which the docstring of an entry begins."""
    found = re.match(r"([\d,]+) weights", find(name).__doc__ or "")
    assert found, f"the docstring of {name} must begin with its number of weights"
    return int(found[1].replace(",", ""))


def config_of(name: str) -> dict:
    """Returns the config.json of an entry."""
    family = family_of(find(name))
    assert family is not None
    return family.config(resolve(name))


def test_every_family_has_entries():
    assert {config_of(name)["model_type"] for name in ENTRIES} == set(FAMILIES)


@pytest.mark.parametrize("name", sorted({*EXTENDED} - {*ENTRIES}))
def test_no_config_describes_parts_of_several_families(name):
    with pytest.raises(UsageError, match=f"models differ from {name.partition('.')[2]}: "):
        representing_family(resolve(name))


@pytest.mark.parametrize("name", EXTENDED)
def test_totals_are_those_of_the_docstring(name):
    assert totals.stored()[name]["parameters"] == documented(name)


@pytest.mark.slow  # make test-slow installs torch
@pytest.mark.parametrize("name", ENTRIES)
def test_the_model_in_pytorch_has_as_many(name):
    torch = pytest.importorskip("torch", reason="torch is not installed; pip install -c constraints.txt -e '.[torch]'")
    transformers = pytest.importorskip("transformers", reason=NEEDS)
    content = config_of(name)
    keys = {key: value for key, value in content.items() if key != "model_type"}
    config = transformers.CONFIG_MAPPING[content["model_type"]].from_dict(keys)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    assert type(model).__name__ == content["architectures"][0]
    assert sum(each.numel() for each in model.parameters()) == documented(name)  # a tied one counts once


@pytest.mark.parametrize("name", ENTRIES)
def test_the_config_of_an_entry_describes_its_model(name):
    experiment, content = resolve(name), config_of(name)
    family, knobs = from_content(content, name)
    derived = family.base_class().derive(**knobs)()
    assert family.config(derived) == content
    for knob, value in knobs.items():
        assert value_of(experiment, knob) == value or (knob in DERIVED and getattr(experiment, knob) is None), knob
    assert model_of(normalized(content)) == model_of(content)


@pytest.mark.parametrize("name", ENTRIES)
def test_the_state_of_training_fits_the_devices_of_the_docstring(name):
    stated = re.search(r"on (one|\d+)( H100)? GPUs?", find(name).__doc__ or "")
    assert stated, f"the docstring of {name} must state its devices"
    devices = 1
    for size in resolve(name).DEVICE_MESH_SHAPE:
        devices *= size
    assert devices == (1 if stated[1] == "one" else int(stated[1]))
    bytes_of = totals.stored()[name]
    state = sum(bytes_of[f"{kind}_per_device"] for kind in ("bytes", "gradient_bytes", "optimizer_bytes"))
    assert state < H100 / 2, "activations need memory too"


# What the published files state, apart from the ids of special tokens.
FILES = {
    "llama.Llama3_2_1B": {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "initializer_range": 0.02,
        "intermediate_size": 8192,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 32,
        "num_hidden_layers": 16,
        "num_key_value_heads": 8,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 32.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.45.0.dev0",
        "use_cache": True,
        "vocab_size": 128256,
    },
    "mistral.Mixtral8x22B": {
        "architectures": ["MixtralForCausalLM"],
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "hidden_size": 6144,
        "initializer_range": 0.02,
        "intermediate_size": 16384,
        "max_position_embeddings": 65536,
        "model_type": "mixtral",
        "num_attention_heads": 48,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 56,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "rms_norm_eps": 1e-05,
        "rope_theta": 1000000,
        "router_aux_loss_coef": 0.001,
        "router_jitter_noise": 0.0,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.40.0.dev0",
        "vocab_size": 32000,
    },
    "gemma.Gemma2_27B": {
        "architectures": ["Gemma2ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_logit_softcapping": 50.0,
        "cache_implementation": "hybrid",
        "final_logit_softcapping": 30.0,
        "head_dim": 128,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 4608,
        "initializer_range": 0.02,
        "intermediate_size": 36864,
        "max_position_embeddings": 8192,
        "model_type": "gemma2",
        "num_attention_heads": 32,
        "num_hidden_layers": 46,
        "num_key_value_heads": 16,
        "query_pre_attn_scalar": 144,
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "sliding_window_size": 4096,
        "torch_dtype": "float32",
        "transformers_version": "4.42.0.dev0",
        "use_cache": True,
        "vocab_size": 256000,
        "_attn_implementation": "eager",
    },
    "qwen.Qwen2_5_0_5B": {
        "architectures": ["Qwen2ForCausalLM"],
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "hidden_size": 896,
        "initializer_range": 0.02,
        "intermediate_size": 4864,
        "max_position_embeddings": 32768,
        "max_window_layers": 24,
        "model_type": "qwen2",
        "num_attention_heads": 14,
        "num_hidden_layers": 24,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 32768,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.40.1",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "pythia.Pythia70M": {
        "architectures": ["GPTNeoXForCausalLM"],
        "hidden_act": "gelu",
        "hidden_size": 512,
        "initializer_range": 0.02,
        "intermediate_size": 2048,
        "layer_norm_eps": 1e-05,
        "max_position_embeddings": 2048,
        "model_type": "gpt_neox",
        "num_attention_heads": 8,
        "num_hidden_layers": 6,
        "rotary_emb_base": 10000,
        "rotary_pct": 0.25,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "transformers_version": "4.24.0",
        "use_cache": True,
        "use_parallel_residual": True,
        "vocab_size": 50304,
    },
}


@pytest.mark.parametrize("name", FILES)
def test_the_published_file_is_the_entry(name):
    assert model_of(FILES[name]) == model_of(config_of(name))
