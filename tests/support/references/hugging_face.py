"""Small models of transformers, with random weights, in folders as it writes them; and what our run folders compute."""

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from runners.convert import main

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 96,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
GROUPED = SIZES | {"num_key_value_heads": 2}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}
LAYERS = ["sliding_attention", "full_attention"]
# By model: the class of its config, and what differs from GROUPED.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, grouped, untied": ("LlamaConfig", {}),
    "llama, tied, scaled": ("LlamaConfig", {"tie_word_embeddings": True, "rope_parameters": LLAMA3}),
    "llama, one head of keys, biases, yarn": (
        "LlamaConfig",
        {
            "num_key_value_heads": 1,
            "attention_bias": True,
            "mlp_bias": True,
            "head_dim": 16,
            "rope_parameters": YARN,
        },
    ),
    "llama, linear": ("LlamaConfig", {"rope_parameters": LINEAR, "num_key_value_heads": 4}),
    "mistral, window": ("MistralConfig", {"sliding_window": 6, "head_dim": 16}),
    "mistral, no window, tied": ("MistralConfig", {"sliding_window": None, "tie_word_embeddings": True}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 8, "sliding_window": None}),
    "mixtral, window, three experts": (
        "MixtralConfig",
        {"num_local_experts": 8, "num_experts_per_tok": 3, "sliding_window": 6},
    ),
    "qwen2": ("Qwen2Config", {}),
    "qwen2, windows, tied": (
        "Qwen2Config",
        {
            "use_sliding_window": True,
            "sliding_window": 6,
            "max_window_layers": 1,
            "num_hidden_layers": 3,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "qwen3, yarn, tied": ("Qwen3Config", {"head_dim": 8, "rope_parameters": YARN, "tie_word_embeddings": True}),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        {
            "head_dim": 16,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
        },
    ),
    "qwen3_moe, dense layer, free gates": (
        "Qwen3MoeConfig",
        {
            "head_dim": 16,
            "num_hidden_layers": 3,
            "num_experts": 16,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "mlp_only_layers": [1],
            "norm_topk_prob": False,
        },
    ),
    "gemma2": (
        "Gemma2Config",
        {"head_dim": 8, "sliding_window": 6, "num_hidden_layers": 3, "query_pre_attn_scalar": 9},
    ),
    "gemma2, caps": (
        "Gemma2Config",
        {
            "head_dim": 16,
            "sliding_window": 6,
            "layer_types": LAYERS,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma3": (
        "Gemma3TextConfig",
        {"head_dim": 8, "sliding_window": 6, "num_hidden_layers": 7, "query_pre_attn_scalar": 8},
    ),
    "gemma3, scaled": (
        "Gemma3TextConfig",
        {
            "head_dim": 16,
            "sliding_window": 6,
            "layer_types": LAYERS,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            },
        },
    ),
    "olmo2": ("Olmo2Config", {}),
    "olmo2, all heads, tied": ("Olmo2Config", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    "gpt_neox": ("GPTNeoXConfig", {}),
    "gpt_neox, sequential, half": (
        "GPTNeoXConfig",
        {
            "use_parallel_residual": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
        },
    ),
}
SETTINGS = ["--set=DTYPE=float32", "--set=BATCH_SIZE=8", "--set=GRADIENT_ACCUMULATION=1"]


def made(name: str, folder: Path | None = None, **save: Any) -> Any:
    """The model of that name in transformers, with random weights; saved to `folder` if there is one."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    kind, changes = MODELS[name]
    sizes = SIZES if kind == "GPTNeoXConfig" else GROUPED
    config = getattr(transformers, kind)(**{**sizes, **changes}, attn_implementation="eager")
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            weight.add_(torch.randn_like(weight) * (0.3 if "norm" in key or "bias" in key else 0.15))
    if folder is not None:
        model.save_pretrained(folder, **save)
    return model


def bring_in(folder: Path, workdir: Path, *more: str) -> int:
    """Imports a folder into a run folder, in float32; returns the exit code."""
    return main(["import", f"--from={folder}", f"--workdir={workdir}", *SETTINGS, *more])


def tokens_of(rows: int = 2, length: int = 24) -> np.ndarray:
    """Token ids, int32 (rows, length)."""
    i = np.arange(length)
    return np.stack([(7 * i**2 + 3 * i + 11 * b + 5) % 96 for b in range(rows)]).astype(np.int32)


def logits_in(model: Any, tokens: np.ndarray) -> np.ndarray:
    """Logits of a model of transformers."""
    import torch

    with torch.no_grad():
        return model(torch.from_numpy(tokens).long()).logits.numpy()


def send_out(workdir: Path, to: Path, *more: str) -> int:
    """Exports a run folder; returns the exit code."""
    return main(["export", f"--workdir={workdir}", f"--to={to}", *more])


def arrays_in(folder: Path) -> dict[str, np.ndarray]:
    """All arrays of the safetensors files of a folder, by key."""
    return {key: array for file in sorted(folder.glob("*.safetensors")) for key, array in load_file(file).items()}
