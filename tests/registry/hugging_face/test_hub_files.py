"""config.json files of published models, with all their keys, are read; known numbers of weights are theirs."""

from typing import Any

import pytest

from registry.hugging_face.entry import family_of, stated
from registry.hugging_face.families import from_content
from registry.records.snapshot import weight_summary
from registry.resolve import find, resolve
from tests.registry.hugging_face.small_configs import model_of

COMMON: dict[str, Any] = {
    "initializer_range": 0.02,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.40.1",
    "use_cache": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def llama_like(model_type: str, architecture: str, sizes: tuple[int, ...], **more: Any) -> dict[str, Any]:
    """Returns a file by the sizes (layers, width, hidden units, heads, heads of keys, vocabulary, positions)."""
    names = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    named = dict(zip((*names, "vocab_size", "max_position_embeddings"), sizes, strict=True))
    return {"model_type": model_type, "architectures": [architecture], **COMMON, **named, **more}


def llama(*sizes: int, **more: Any) -> dict[str, Any]:
    """Returns a file with the keys that most files of llama models have."""
    shared = {"hidden_act": "silu", "pretraining_tp": 1, "rms_norm_eps": 1e-5, "rope_scaling": None}
    return llama_like("llama", "LlamaForCausalLM", sizes, **shared | {"tie_word_embeddings": False} | more)


def mistral(*sizes: int, **more: Any) -> dict[str, Any]:
    """Returns a file with the keys that most files of mistral models have."""
    shared = {"hidden_act": "silu", "rms_norm_eps": 1e-5, "attention_dropout": 0.0, "tie_word_embeddings": False}
    return llama_like("mistral", "MistralForCausalLM", sizes, **shared | more)


def qwen2(*sizes: int, **more: Any) -> dict[str, Any]:
    """Returns a file with the keys that most files of qwen2 models have."""
    shared = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0, "attention_dropout": 0.0}
    shared |= {"use_sliding_window": False, "tie_word_embeddings": False}
    return llama_like("qwen2", "Qwen2ForCausalLM", sizes, **shared | more)


QWEN3 = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "sliding_window": None,
    "use_sliding_window": False,
}
QWEN3_MOE = QWEN3 | {
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
    "tie_word_embeddings": False,
}
GEMMA = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "cache_implementation": "hybrid",
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "pad_token_id": 0,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-6,
}
GEMMA3 = GEMMA | {
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "rope_local_base_freq": 10_000.0,
    "rope_scaling": None,
    "rope_theta": 1_000_000.0,
    "sliding_window": 512,
}
LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
BIASES = {"attention_bias": False, "mlp_bias": False, "attention_dropout": 0.0}
LLAMA_3_2_1B = llama(
    *(16, 2048, 8192, 32, 8, 128_256, 131_072),
    **BIASES,
    head_dim=64,
    rope_theta=500_000.0,
    rope_scaling={"factor": 32.0, **LLAMA3},
    tie_word_embeddings=True,
)
UNSLOTH = {"unsloth_fixed": True, "unsloth_version": "2024.9", "_attn_implementation_autoset": True, "pad_token_id": 4}
MIXTRAL = {
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "output_router_logits": False,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "router_aux_loss_coef": 0.02,
    "sliding_window": None,
    "tie_word_embeddings": False,
}
# Name: the file, the number of weights, and the entry of the same model, empty if there is none.
FILES: dict[str, tuple[dict[str, Any], int, str]] = {
    "Llama-2-7b-hf": (llama(32, 4096, 11_008, 32, 32, 32_000, 4096), 6_738_415_616, "llama.Llama2_7B"),
    "vicuna-7b-v1.5": (llama(32, 4096, 11_008, 32, 32, 32_000, 4096, pad_token_id=0), 6_738_415_616, "llama.Llama2_7B"),
    "vicuna-7b-v1.3": (
        llama(32, 4096, 11_008, 32, 32, 32_000, 2048, max_sequence_length=2048, rms_norm_eps=1e-6),
        *(6_738_415_616, ""),
    ),
    "Llama-3.1-8B": (
        llama(
            *(32, 4096, 14_336, 32, 8, 128_256, 131_072),
            **BIASES,
            rope_theta=500_000.0,
            rope_scaling={"factor": 8.0, **LLAMA3},
        ),
        *(8_030_261_248, "llama.Llama3_1_8B"),
    ),
    "Llama-3.2-1B": (LLAMA_3_2_1B, 1_235_814_400, "llama.Llama3_2_1B"),
    "unsloth/Llama-3.2-1B": (LLAMA_3_2_1B | UNSLOTH, 1_235_814_400, "llama.Llama3_2_1B"),
    "SmolLM2-135M": (
        llama(
            *(30, 576, 1536, 9, 3, 49_152, 8192),
            **BIASES,
            initializer_range=0.041666666666666664,
            is_llama_config=True,
            rope_interleaved=False,
            rope_theta=100_000,
            tie_word_embeddings=True,
        ),
        *(134_515_008, ""),
    ),
    "TinyLlama-1.1B-Chat-v1.0": (
        llama(22, 2048, 5632, 32, 4, 32_000, 2048, attention_bias=False, rope_theta=10_000.0),
        *(1_100_048_384, ""),
    ),
    "Mistral-7B-v0.1": (
        mistral(32, 4096, 14_336, 32, 8, 32_000, 32_768, rope_theta=10_000.0, sliding_window=4096),
        *(7_241_732_096, "mistral.Mistral7B"),
    ),
    "Mistral-7B-v0.3": (
        mistral(32, 4096, 14_336, 32, 8, 32_768, 32_768, rope_theta=1_000_000.0, sliding_window=None),
        *(7_248_023_552, "mistral.Mistral7Bv3"),
    ),
    "Mistral-Nemo-Base-2407": (
        mistral(40, 5120, 14_336, 32, 8, 131_072, 131_072, head_dim=128, rope_theta=1_000_000.0, sliding_window=None),
        *(12_247_782_400, "mistral.MistralNemo"),
    ),
    "Mixtral-8x7B-v0.1": (
        llama_like("mixtral", "MixtralForCausalLM", (32, 4096, 14_336, 32, 8, 32_000, 32_768), **MIXTRAL),
        *(46_702_792_704, "mistral.Mixtral8x7B"),
    ),
    "Qwen2.5-0.5B": (
        qwen2(
            *(24, 896, 4864, 14, 2, 151_936, 32_768),
            max_window_layers=24,
            sliding_window=32_768,
            tie_word_embeddings=True,
            use_mrope=False,
        ),
        *(494_032_768, "qwen.Qwen2_5_0_5B"),
    ),
    "Qwen2.5-7B-Instruct": (
        qwen2(28, 3584, 18_944, 28, 4, 152_064, 32_768, max_window_layers=28, sliding_window=131_072),
        *(7_615_616_512, ""),  # the entry is the base model, with more positions
    ),
    "Qwen2.5-7B": (
        qwen2(28, 3584, 18_944, 28, 4, 152_064, 131_072, max_window_layers=28, sliding_window=131_072, use_mrope=False),
        *(7_615_616_512, "qwen.Qwen2_5_7B"),
    ),
    "DeepSeek-R1-Distill-Qwen-1.5B": (
        qwen2(
            *(28, 1536, 8960, 12, 2, 151_936, 131_072),
            max_window_layers=21,
            rope_theta=10_000,
            sliding_window=4096,
            use_mrope=False,
        ),
        *(1_777_088_000, ""),
    ),
    "Qwen3-0.6B": (
        llama_like(
            *("qwen3", "Qwen3ForCausalLM", (28, 1024, 3072, 16, 8, 151_936, 40_960)),
            **QWEN3,
            max_window_layers=28,
            rope_theta=1_000_000,
            tie_word_embeddings=True,
        ),
        *(596_049_920, "qwen.Qwen3_0_6B"),
    ),
    "Qwen3-30B-A3B": (
        llama_like(
            *("qwen3_moe", "Qwen3MoeForCausalLM", (48, 2048, 6144, 32, 4, 151_936, 40_960)),
            **QWEN3_MOE,
            max_window_layers=48,
            rope_theta=1_000_000.0,
        ),
        *(30_532_122_624, "qwen.Qwen3_30B_A3B"),
    ),
    "Qwen3-Coder-30B-A3B-Instruct": (
        llama_like(
            *("qwen3_moe", "Qwen3MoeForCausalLM", (48, 2048, 5472, 32, 4, 151_936, 262_144)),
            **QWEN3_MOE,
            max_window_layers=28,
            qkv_bias=False,
            rope_theta=10_000_000,
            shared_expert_intermediate_size=0,
            use_qk_norm=True,
        ),
        *(30_532_122_624, ""),
    ),
    "gemma-2-2b": (
        llama_like(
            *("gemma2", "Gemma2ForCausalLM", (26, 2304, 9216, 8, 4, 256_000, 8192)),
            **GEMMA,
            attn_logit_softcapping=50.0,
            final_logit_softcapping=30.0,
            hidden_act="gelu_pytorch_tanh",
            rope_theta=10_000.0,
            sliding_window=4096,
        ),
        *(2_614_341_888, "gemma.Gemma2_2B"),
    ),
    "gemma-3-1b-it": (
        llama_like(
            *("gemma3_text", "Gemma3ForCausalLM", (26, 1152, 6912, 4, 1, 262_144, 32_768)),
            **GEMMA3,
            sliding_window_pattern=6,
        ),
        *(999_885_952, "gemma.Gemma3_1B"),
    ),
    "gemma-3-270m": (
        llama_like(
            *("gemma3_text", "Gemma3ForCausalLM", (18, 640, 2048, 4, 1, 262_144, 32_768)),
            **GEMMA3,
            _sliding_window_pattern=6,
            layer_types=[*["sliding_attention"] * 5, "full_attention"] * 3,
            use_bidirectional_attention=False,
        ),
        *(268_098_176, "gemma.Gemma3_270M"),
    ),
    "OLMo-2-1124-7B": (
        llama_like(
            *("olmo2", "Olmo2ForCausalLM", (32, 4096, 11_008, 32, 32, 100_352, 4096)),
            attention_bias=False,
            attention_dropout=0.0,
            hidden_act="silu",
            rms_norm_eps=1e-6,
            rope_scaling=None,
            rope_theta=500_000,
            tie_word_embeddings=False,
        ),
        *(7_298_617_344, "olmo.Olmo2_7B"),
    ),
    "pythia-70m": (
        COMMON
        | {
            "architectures": ["GPTNeoXForCausalLM"],
            "hidden_act": "gelu",
            "hidden_size": 512,
            "intermediate_size": 2048,
            "layer_norm_eps": 1e-05,
            "max_position_embeddings": 2048,
            "model_type": "gpt_neox",
            "num_attention_heads": 8,
            "num_hidden_layers": 6,
            "rotary_emb_base": 10_000,
            "rotary_pct": 0.25,
            "tie_word_embeddings": False,
            "use_parallel_residual": True,
            "vocab_size": 50_304,
        },
        *(70_426_624, "pythia.Pythia70M"),
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_the_file_is_the_published_model(name):
    content, weights, entry = FILES[name]
    family, knobs = from_content(content, name)
    model = family.base_class().derive(**stated(family, knobs))()
    assert weight_summary(model)["totals"]["parameters"] == weights
    if entry:
        assert family_of(find(entry)) is family
        assert model_of(content) == model_of(family.config(resolve(entry)))
