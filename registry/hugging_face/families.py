"""The families of Hugging Face's models, and the reading of a config.json."""

import json
from collections.abc import Mapping
from typing import Any

from layers.errors import UsageError, did_you_mean
from registry.hugging_face.experts import Experts
from registry.hugging_face.family import SHARED, Family
from registry.hugging_face.keys import Config, Knobs, Only, Relation, Same, Without, load
from registry.hugging_face.relations import Activation, Biases, InverseRoot, Parallel, Windows
from registry.hugging_face.rotary import Rotary

__all__ = ["FAMILIES", "SHARED", "Family", "from_content", "read"]

HIDDEN = Same("intermediate_size", "FFN_DIM")


def _length(default: int) -> Same:
    return Same("max_position_embeddings", "CONTEXT_LEN", default)


def _epsilon(name: str, default: float) -> Same:
    return Same(name, "NORM_EPSILON", default, float, least=0.0)


def _tied(default: bool) -> Same:
    return Same("tie_word_embeddings", "TIE_EMBEDDINGS", default, bool)


def _kv_heads(default: int | None) -> Same:
    return Same("num_key_value_heads", "NUM_KV_HEADS", default, nullable=True)


def _head_dim(default: int | None) -> Same:
    return Same("head_dim", "HEAD_DIM", default, nullable=True)


def _dropout(name: str, knob: str) -> Same:
    return Same(name, knob, 0.0, float, least=0.0)


LLAMA_LIKE: dict[str, Any] = {"NORM": "rms", "FFN": "gated", "POSITIONS": "rotary", "RESIDUAL": "sequential"}
ATTENTION_BIAS = ("attention_bias", ("qkv", "attention_out"), False)
SHARED_WITH_LLAMA: tuple[Relation, ...] = (
    HIDDEN,
    Activation("hidden_act", "silu"),
    _dropout("attention_dropout", "ATTENTION_DROPOUT"),
)
GEMMA_SHARED = LLAMA_LIKE | {
    "RESIDUAL": "sandwich_norm",
    "NORM_SCALE": "one_plus_vector",
    "EMBEDDING_SCALE": "sqrt",
}
GEMMA_KEYS: tuple[Relation, ...] = (
    HIDDEN,
    Activation("hidden_activation", "gelu_pytorch_tanh"),
    Only("hidden_act", "gelu_pytorch_tanh"),
    _dropout("attention_dropout", "ATTENTION_DROPOUT"),
    Biases((ATTENTION_BIAS,)),
    _kv_heads(4),
    _head_dim(256),
    _epsilon("rms_norm_eps", 1e-6),
    _tied(True),
    InverseRoot("query_pre_attn_scalar", 256),
)
QWEN_KEYS: tuple[Relation, ...] = (
    *SHARED_WITH_LLAMA,
    _kv_heads(32),
    _length(32_768),
    _epsilon("rms_norm_eps", 1e-6),
    _tied(False),
    Rotary(),
    Windows(default=4096, by_layer=True, switch=True, first_key="max_window_layers", first=28),
    Only("use_mrope", False),
)
MOE: dict[str, Any] = {"ROUTING": "top_k", "CAPACITY_FACTOR": None}

FAMILIES = {
    family.model_type: family
    for family in (
        Family(
            "llama",
            "LlamaForCausalLM",
            "registry.templates.llama_lm.LlamaLm",
            LLAMA_LIKE,
            (
                *SHARED_WITH_LLAMA,
                Biases((ATTENTION_BIAS, ("mlp_bias", ("ffn",), False))),
                _kv_heads(None),
                _head_dim(None),
                _length(2048),
                _epsilon("rms_norm_eps", 1e-6),
                _tied(False),
                Rotary(),
                Only("rope_interleaved", False),
                Without(("is_llama_config", "max_sequence_length")),
                Without(("pretraining_tp",)),  # changes the order of sums only
            ),
        ),
        Family(
            "mistral",
            "MistralForCausalLM",
            "registry.experiments.mistral.Mistral",
            LLAMA_LIKE,
            (
                *SHARED_WITH_LLAMA,
                _kv_heads(8),
                _head_dim(None),
                _length(131_072),
                _epsilon("rms_norm_eps", 1e-6),
                _tied(False),
                Rotary(),
                Windows(default=4096),
            ),
        ),
        Family(
            "mixtral",
            "MixtralForCausalLM",
            "registry.experiments.mistral.Mixtral",
            LLAMA_LIKE | MOE,
            (
                *SHARED_WITH_LLAMA,
                _kv_heads(8),
                _head_dim(None),
                _length(131_072),
                _epsilon("rms_norm_eps", 1e-5),
                _tied(False),
                Rotary(base=1_000_000.0),
                Windows(),
                Experts(("num_local_experts",), 8, 2),
                Same("router_jitter_noise", "JITTER", 0.0, float, least=0.0),
                Without(("output_router_logits",)),
            ),
        ),
        Family(
            "qwen2",
            "Qwen2ForCausalLM",
            "registry.experiments.qwen.Qwen2",
            LLAMA_LIKE,
            (Biases(always=("qkv",)), *QWEN_KEYS),
        ),
        Family(
            "qwen3",
            "Qwen3ForCausalLM",
            "registry.experiments.qwen.Qwen3",
            LLAMA_LIKE | {"QK_NORM": "rms"},
            (_head_dim(128), Biases((ATTENTION_BIAS,)), *QWEN_KEYS),
        ),
        Family(
            "qwen3_moe",
            "Qwen3MoeForCausalLM",
            "registry.experiments.qwen.Qwen3Moe",
            LLAMA_LIKE | MOE | {"QK_NORM": "rms"},
            (
                Activation("hidden_act", "silu"),
                _dropout("attention_dropout", "ATTENTION_DROPOUT"),
                Biases((ATTENTION_BIAS,)),
                _kv_heads(4),
                _head_dim(None),
                _length(32_768),
                _epsilon("rms_norm_eps", 1e-6),
                _tied(False),
                Rotary(),
                Windows(default=4096, switch=True),
                Experts(
                    ("num_experts", "num_local_experts"),
                    128,
                    8,
                    normalized_key="norm_topk_prob",
                    dim_key="moe_intermediate_size",
                    dense_key="mlp_only_layers",
                    step_key="decoder_sparse_step",
                ),
                Only("qkv_bias", False),
                Only("use_qk_norm", True),
                Only("shared_expert_intermediate_size", 0),
                Without(("output_router_logits", "max_window_layers")),
            ),
        ),
        Family(
            "gemma2",
            "Gemma2ForCausalLM",
            "registry.experiments.gemma.Gemma2",
            GEMMA_SHARED,
            (
                *GEMMA_KEYS,
                _length(8192),
                Rotary(),
                Windows(default=4096, by_layer=True, period=2),
                Same("attn_logit_softcapping", "ATTENTION_SOFTCAP", 50.0, float, nullable=True),
                Same("final_logit_softcapping", "LOGITS_SOFTCAP", 30.0, float, nullable=True),
                Only("use_bidirectional_attention", None, "Causal models have null."),
                Without(("sliding_window_size",)),
            ),
        ),
        Family(
            "gemma3_text",
            "Gemma3ForCausalLM",
            "registry.experiments.gemma.Gemma3",
            GEMMA_SHARED | {"QK_NORM": "rms"},
            (
                *GEMMA_KEYS,
                _length(131_072),
                Rotary(base=1_000_000.0, local_base_key="rope_local_base_freq"),
                Windows(
                    default=4096,
                    by_layer=True,
                    period=6,
                    period_keys=("sliding_window_pattern", "_sliding_window_pattern"),
                ),
                Same("attn_logit_softcapping", "ATTENTION_SOFTCAP", None, float, nullable=True),
                Same("final_logit_softcapping", "LOGITS_SOFTCAP", None, float, nullable=True),
                Only("use_bidirectional_attention", False, "Causal models have false."),
            ),
        ),
        Family(
            "olmo2",
            "Olmo2ForCausalLM",
            "registry.experiments.olmo.Olmo2",
            LLAMA_LIKE | {"RESIDUAL": "post_norm", "QK_NORM": "rms_all_heads"},
            (
                *SHARED_WITH_LLAMA,
                Biases((ATTENTION_BIAS,)),
                _kv_heads(None),
                _length(2048),
                _epsilon("rms_norm_eps", 1e-5),
                _tied(False),
                Rotary(),
            ),
        ),
        Family(
            "gpt_neox",
            "GPTNeoXForCausalLM",
            "registry.experiments.pythia.GptNeoX",
            {"NORM": "layer", "FFN": "dense", "POSITIONS": "rotary"},
            (
                HIDDEN,
                Activation("hidden_act", "gelu"),
                _dropout("attention_dropout", "ATTENTION_DROPOUT"),
                _dropout("hidden_dropout", "DROPOUT"),
                Biases((("attention_bias", ("qkv", "attention_out"), True),), always=("ffn", "norm")),
                _length(2048),
                _epsilon("layer_norm_eps", 1e-5),
                _tied(False),
                Rotary(base_key="rotary_emb_base", share_key="rotary_pct", share=0.25),
                Parallel(),
                Without(("classifier_dropout",)),
            ),
        ),
    )
}


def read(path: str) -> tuple[Family, Knobs]:
    """Returns the family and the knobs of a config.json or of the folder with it.

    Raises:
      UsageError: the file cannot be read, or has a key or value that the template cannot represent.
    """
    return from_content(load(path), path)


def from_content(content: Mapping[str, Any], source: str) -> tuple[Family, Knobs]:
    """Returns the family and the knobs of the content of a config.json; `source` names it in errors."""
    config = Config(content, source)
    if config.model_type not in FAMILIES and isinstance(content.get("text_config"), dict):
        raise UsageError(
            f"model_type = {json.dumps(config.model_type)} in '{source}' is not supported: its models read images or "
            f"sound, too. Choose a model of text alone, such as one of type gemma3_text."
        )
    if config.model_type not in FAMILIES:
        raise UsageError(
            f"model_type = {json.dumps(config.model_type)} in '{source}' is not supported. "
            f"{did_you_mean(config.model_type, FAMILIES)}"
        )
    family = FAMILIES[config.model_type]
    return family, family.knobs(config)
