"""GPT2LMHeadModel and LlamaForCausalLM of Hugging Face's transformers, on torch."""

import logging
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from benchmarks.implementations.torch_models import updater
from benchmarks.implementations.work import Decoder, Gpt2Size, LlamaSize, Trainer


def load(size: Gpt2Size, weights: str) -> Any:
    """Loads the model with the weights of a file in the size's format."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    model: Any = AutoModelForCausalLM.from_config(_config(size))
    missing, unexpected = model.load_state_dict(load_file(weights), strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise ValueError(f"weights differ: {missing}, {unexpected}")
    model.tie_weights()
    return model


def _config(size: Gpt2Size) -> Any:
    ids = {"bos_token_id": None, "eos_token_id": None}
    if isinstance(size, LlamaSize):
        return LlamaConfig(
            vocab_size=size.vocab,
            hidden_size=size.width,
            intermediate_size=size.hidden,
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            num_key_value_heads=size.kv_heads,
            max_position_embeddings=size.context,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            **ids,
        )
    return GPT2Config(
        vocab_size=size.vocab,
        n_positions=size.context,
        n_embd=size.width,
        n_layer=size.layers,
        n_head=size.heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        **ids,
    )


def trainer(size: Gpt2Size, weights: str, options: set[str]) -> Trainer:
    model = load(size, weights).train()
    tokens = torch.from_numpy(size.rows_of_tokens()).long()
    return updater(model, lambda: model(tokens, labels=tokens).loss)


def decoder(size: Gpt2Size, weights: str, rows: int, prompt: int, new: int, options: set[str]) -> Decoder:
    """Returns a decoder that calls greedy `generate` with its cache."""
    model = load(size, weights).eval()
    tokens = torch.from_numpy(size.rows_of_tokens(rows, prompt)).long()
    settings: Any = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0}

    def run() -> np.ndarray:
        with torch.inference_mode():
            return model.generate(tokens, attention_mask=torch.ones_like(tokens), **settings)[:, prompt:].numpy()

    return run
