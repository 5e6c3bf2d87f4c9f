"""Small config.json files as transformers writes them, in the forms of its versions 5 and 4."""

import json
from typing import Any

import pytest

from registry.hugging_face.families import FAMILIES, from_content
from registry.hugging_face.keys import value_of

NEEDS = "transformers is not installed; pip install -c constraints.txt -e '.[hf]'"
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 300,
    "max_position_embeddings": 64,
    "rms_norm_eps": 2e-6,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
MORE: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 2, "head_dim": 8},
    "mistral": {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 8},
    "mixtral": {"num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 3},
    "qwen2": {"num_key_value_heads": 2, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 16, "sliding_window": None},
    "qwen3_moe": {
        "num_key_value_heads": 2,
        "head_dim": 8,
        "num_experts": 4,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 16,
        "mlp_only_layers": [1],
    },
    "gemma2": {"num_key_value_heads": 2, "head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 24},
    "gemma3_text": {"num_key_value_heads": 2, "head_dim": 16, "sliding_window": 8, "num_hidden_layers": 7},
    "olmo2": {"num_key_value_heads": 2},
    "gpt_neox": {"layer_norm_eps": 2e-5},
}
SCALINGS: dict[str, dict[str, Any] | None] = {
    "default": None,
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
}


def version_5(model_type: str, scaling: str = "default") -> dict[str, Any]:
    """Returns all keys of a small config, as transformers 5 writes them."""
    return normalized(version_4(model_type, scaling))


def version_4(model_type: str, scaling: str = "default") -> dict[str, Any]:
    """Returns a small config with rope_theta and rope_scaling, or the keys that the family had in their place."""
    rope: dict[str, Any] = {"rope_theta": 50_000.0}
    if model_type == "gpt_neox":
        rope = {"rotary_emb_base": 50_000, "rotary_pct": 0.5}
    if model_type == "gemma3_text":
        rope["rope_local_base_freq"] = 20_000.0
    sizes = {name: value for name, value in SIZES.items() if (name, model_type) != ("rms_norm_eps", "gpt_neox")}
    content = {"model_type": model_type, "architectures": [FAMILIES[model_type].architecture]}
    found = SCALINGS[scaling]
    return {**content, **sizes, **MORE[model_type], **rope, "rope_scaling": None if found is None else dict(found)}


def normalized(content: dict[str, Any]) -> dict[str, Any]:
    """Returns all keys that transformers writes after it has read the content."""
    configs = pytest.importorskip("transformers", reason=NEEDS).CONFIG_MAPPING
    copied = json.loads(json.dumps({name: value for name, value in content.items() if name != "model_type"}))
    config = configs[content["model_type"]].from_dict(copied)
    return json.loads(config.to_json_string(use_diff=False))


def model_of(content: dict[str, Any]) -> dict[str, Any]:
    """Returns what determines the model of a config.json: its keys and knobs with all derived values."""
    family, knobs = from_content(content, "config.json")
    experiment = family.base_class().derive(**knobs)()
    return {**family.config(experiment), **{name: value_of(experiment, name) for name in knobs}}
