"""Families of Hugging Face's models: the keys of their config.json, and the knobs that all their models share."""

import dataclasses
import functools
import importlib
import json
from collections.abc import Mapping
from typing import Any

from layers.errors import UsageError, did_you_mean
from registry.experiment import knob_types
from registry.hugging_face.keys import Config, Knobs, Only, Relation, Same, Without, load
from registry.hugging_face.relations import (
    Activation,
    Biases,
    Experts,
    InitialStddev,
    InverseRoot,
    Parallel,
    Rotary,
    Windows,
    shortest,
)
from registry.values import convert

# Keys that transformers has for all families.
SHARED: tuple[Relation, ...] = (
    Without(("_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache", "cache_implementation")),
    Without(("bos_token_id", "eos_token_id", "pad_token_id", "id2label", "label2id", "problem_type", "return_dict")),
    Without(("output_attentions", "output_hidden_states", "attn_implementation", "_attn_implementation")),
    Only("is_encoder_decoder", False),
    Only("is_decoder", False),
    Only("chunk_size_feed_forward", 0),
    Same("hidden_size", "MODEL_DIM"),
    Same("num_hidden_layers", "NUM_LAYERS"),
    Same("vocab_size", "VOCAB_SIZE"),
    Same("num_attention_heads", "NUM_HEADS"),
    InitialStddev(),
)
HIDDEN = Same("intermediate_size", "FFN_DIM")


@dataclasses.dataclass(frozen=True)
class Family:
    """A model_type of transformers."""

    model_type: str
    architecture: str  # the class of its causal language models
    base: str  # module and class of the template or entry's base whose knobs its models share
    shared: Mapping[str, Any]  # knobs that all its models have and no key determines
    relations: tuple[Relation, ...]

    def names(self) -> set[str]:
        """Returns all keys that its files may have."""
        own = {name for relation in (*SHARED, *self.relations) for name in relation.names}
        return {"model_type", "architectures", *own}

    def knobs(self, config: Config) -> Knobs:
        """Returns the knobs of the model that the file describes.

        Raises:
          UsageError: a key is unknown, missing or of another type, or its value is not supported.
        """
        for architecture in config.read("architectures", None, list, nullable=True) or []:
            if architecture != self.architecture:
                raise config.refuse("architectures", f"Only {self.architecture} is.")
        found = dict(self.shared)
        types = _knob_types(self.base)
        for relation in (*SHARED, *self.relations):
            knobs = relation.knobs(config)
            _require_valid(knobs, types, relation, config)
            found |= knobs
        config.require_all_read(self.names())
        return _with_local_bases(found)

    def config(self, experiment: Any) -> dict[str, Any]:
        """Returns the config.json of an experiment's model, which describes it if `knobs` returns the same model."""
        keys: dict[str, Any] = {"architectures": [self.architecture], "model_type": self.model_type}
        for relation in (*SHARED, *self.relations):
            keys |= relation.keys(experiment)
        return keys

    def base_class(self) -> Any:
        """Returns the class of `base`."""
        return _class(self.base)


def _require_valid(knobs: Knobs, types: Mapping[str, Any], relation: Relation, config: Config) -> None:
    """Raises a UsageError, which names the key, for a value that the knob does not take."""
    for name, value in knobs.items():
        try:
            convert(value, types[name], name)
        except UsageError as error:
            wrong = [each for each in (value if isinstance(value, tuple) else (value,)) if not _fits(each, types[name])]
            keys = [key for key in relation.names if any(config.has_value(key, each) for each in wrong)]
            raise config.refuse((*keys, *relation.names)[0], str(error)) from error


def _fits(value: Any, hint: Any) -> bool:
    try:
        convert(value, hint, "")
    except UsageError:
        return False
    return True


@functools.cache
def _knob_types(base: str) -> dict[str, Any]:
    return knob_types(_class(base))


def _class(name: str) -> Any:
    module, _, cls = name.rpartition(".")
    return getattr(importlib.import_module(module), cls)


def _length(default: int) -> Same:
    return Same("max_position_embeddings", "CONTEXT_LEN", default)


def _epsilon(name: str, default: float) -> Same:
    return Same(name, "NORM_EPSILON", default, float)


def _tied(default: bool) -> Same:
    return Same("tie_word_embeddings", "TIE_EMBEDDINGS", default, bool)


def _kv_heads(default: int | None) -> Same:
    return Same("num_key_value_heads", "NUM_KV_HEADS", default, nullable=True)


def _head_dim(default: int | None) -> Same:
    return Same("head_dim", "HEAD_DIM", default, nullable=True)


def _dropout(name: str, knob: str) -> Same:
    return Same(name, knob, 0.0, float)


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
                Only("pretraining_tp", 1),
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
                Same("router_jitter_noise", "JITTER", 0.0, float),
                Without(("output_router_logits",)),
            ),
        ),
        Family(
            "qwen2",
            "Qwen2ForCausalLM",
            "registry.experiments.qwen.Qwen2",
            LLAMA_LIKE,
            (
                *SHARED_WITH_LLAMA,
                Biases(always=("qkv",)),
                _kv_heads(32),
                _length(32_768),
                _epsilon("rms_norm_eps", 1e-6),
                _tied(False),
                Rotary(),
                Windows(default=4096, by_layer=True, switch=True, first_key="max_window_layers", first=28),
            ),
        ),
        Family(
            "qwen3",
            "Qwen3ForCausalLM",
            "registry.experiments.qwen.Qwen3",
            LLAMA_LIKE | {"QK_NORM": "rms"},
            (
                *SHARED_WITH_LLAMA,
                Biases((ATTENTION_BIAS,)),
                _kv_heads(32),
                _head_dim(128),
                _length(32_768),
                _epsilon("rms_norm_eps", 1e-6),
                _tied(False),
                Rotary(),
                Windows(default=4096, by_layer=True, switch=True, first_key="max_window_layers", first=28),
            ),
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
            f"model_type = {json.dumps(config.model_type)} in '{source}' is not supported, because it is not for text "
            f"alone. Save its text_config as a config.json of its own and give that."
        )
    if config.model_type not in FAMILIES:
        raise UsageError(
            f"model_type = {json.dumps(config.model_type)} in '{source}' is not supported. "
            f"{did_you_mean(config.model_type, FAMILIES)}"
        )
    family = FAMILIES[config.model_type]
    return family, family.knobs(config)


def _with_local_bases(knobs: Knobs) -> Knobs:
    """Fits the pairs of rotary knobs, of layers with and without a window, to the pattern of windows."""
    windows = knobs.get("ATTENTION_WINDOW")
    pairs = {name: value for name, value in knobs.items() if name.startswith("ROTARY_") and isinstance(value, tuple)}
    if isinstance(windows, tuple):
        return knobs | {name: shortest([pair[each is None] for each in windows]) for name, pair in pairs.items()}
    return knobs | {name: pair[windows is None] for name, pair in pairs.items()}
