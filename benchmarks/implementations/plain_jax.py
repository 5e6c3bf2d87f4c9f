"""GPT-2 and a Llama in plain jitted JAX: arrays in dictionaries, no framework, no mesh, only optax for the update.

Options: "scan" runs layers as a loop over stacked weights; by default layers are unrolled with separate weights.
"remat" saves only the results of matrix products for the backward pass.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from safetensors.numpy import load_file

from benchmarks.implementations.optax_training import trainer_of
from benchmarks.implementations.work import Gpt2Size, LlamaSize, Trainer

DECAYED = ("wte.weight", "embed_tokens.weight", "c_attn.weight", "c_fc.weight", "_proj.weight")


def load(size: Gpt2Size, weights: str, stacked: bool) -> dict[str, Any]:
    """Loads the weights of a file in the size's format, matrices as (in, out); `layers` is stacked or a list."""
    model, layers = ("model.", "layers.") if isinstance(size, LlamaSize) else ("transformer.", "h.")
    flat = {name.removeprefix(model): value for name, value in load_file(weights).items() if "lm_head" not in name}
    if isinstance(size, LlamaSize):
        flat = {name: value.T if name.endswith("_proj.weight") else value for name, value in flat.items()}
    prefixes = [f"{layers}{number}." for number in range(size.layers)]
    blocks = [
        {name.removeprefix(prefix): jnp.asarray(value) for name, value in flat.items() if name.startswith(prefix)}
        for prefix in prefixes
    ]
    others = {name: jnp.asarray(value) for name, value in flat.items() if not name.startswith(layers)}
    return others | {"layers": jax.tree.map(lambda *rows: jnp.stack(rows), *blocks) if stacked else blocks}


def layer_norm(x, scale, bias):
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5) * scale + bias


def rms_norm(x, scale):
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5) * scale


def mixed(query, key, value):
    """Causal attention: queries (b, heads, positions, d), or (b, kv heads, groups, positions, d) in groups."""
    (length, width), g = query.shape[-2:], "g" if query.ndim == 5 else ""
    scores = jnp.einsum(f"bn{g}qd,bnkd->bn{g}qk", query, key) * width**-0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e30)
    return jnp.einsum(f"bn{g}qk,bnkd->bn{g}qd", jax.nn.softmax(scores), value)


def heads_of(x, heads: int):
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def gpt2_block(x, w, size: Gpt2Size):
    qkv = layer_norm(x, w["ln_1.weight"], w["ln_1.bias"]) @ w["attn.c_attn.weight"] + w["attn.c_attn.bias"]
    query, key, value = (heads_of(y, size.heads) for y in jnp.split(qkv, 3, axis=-1))
    heads = mixed(query, key, value).swapaxes(1, 2).reshape(x.shape)
    x = x + heads @ w["attn.c_proj.weight"] + w["attn.c_proj.bias"]
    hidden = layer_norm(x, w["ln_2.weight"], w["ln_2.bias"]) @ w["mlp.c_fc.weight"] + w["mlp.c_fc.bias"]
    return x + jax.nn.gelu(hidden) @ w["mlp.c_proj.weight"] + w["mlp.c_proj.bias"]


def rotated(x):
    """Rotates heads (..., positions, d) by their positions, with base 10000; the pairs are i and i + d / 2."""
    length, width = x.shape[-2:]
    angles = jnp.arange(length)[:, None] * 1e4 ** (-jnp.arange(0, width, 2) / width)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def llama_block(x, w, size: LlamaSize):
    rows, length, _ = x.shape
    inputs, groups = rms_norm(x, w["input_layernorm.weight"]), size.heads // size.kv_heads
    query = rotated(heads_of(inputs @ w["self_attn.q_proj.weight"], size.heads))
    query = query.reshape(rows, size.kv_heads, groups, length, -1)
    key = rotated(heads_of(inputs @ w["self_attn.k_proj.weight"], size.kv_heads))
    value = heads_of(inputs @ w["self_attn.v_proj.weight"], size.kv_heads)
    heads = mixed(query, key, value).reshape(rows, size.heads, length, -1).swapaxes(1, 2).reshape(x.shape)
    x = x + heads @ w["self_attn.o_proj.weight"]
    inputs = rms_norm(x, w["post_attention_layernorm.weight"])
    hidden = jax.nn.silu(inputs @ w["mlp.gate_proj.weight"]) * (inputs @ w["mlp.up_proj.weight"])
    return x + hidden @ w["mlp.down_proj.weight"]


def loss_of(params, tokens, targets, size: Gpt2Size, options: set[str]):
    if isinstance(size, LlamaSize):
        x, run = params["embed_tokens.weight"][tokens], functools.partial(llama_block, size=size)
    else:
        x = params["wte.weight"][tokens] + params["wpe.weight"][: tokens.shape[1]]
        run = functools.partial(gpt2_block, size=size)
    if "remat" in options:
        run = jax.checkpoint(run, policy=jax.checkpoint_policies.dots_saveable, prevent_cse="scan" not in options)
    if "scan" in options:
        x = jax.lax.scan(lambda x, w: (run(x, w), None), x, params["layers"])[0]
    else:
        for w in params["layers"]:
            x = run(x, w)
    if isinstance(size, LlamaSize):
        logits = rms_norm(x, params["norm.weight"]) @ params["embed_tokens.weight"].T
    else:
        logits = layer_norm(x, params["ln_f.weight"], params["ln_f.bias"]) @ params["wte.weight"].T
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(targets, 0))
    return jnp.where(targets >= 0, losses, 0).sum() / (targets >= 0).sum()


def trainer(size: Gpt2Size, weights: str, options: set[str]) -> Trainer:
    params = load(size, weights, "scan" in options)
    matrices = jax.tree_util.tree_map_with_path(lambda path, _: str(path[-1].key).endswith(DECAYED), params)
    tokens, targets = jnp.asarray(size.rows_of_tokens()), jnp.asarray(size.targets())
    return trainer_of(lambda params: loss_of(params, tokens, targets, size, options), params, matrices)
