"""GPT-2 in plain jitted JAX: arrays in dictionaries, no framework, no mesh, only optax for the update.

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
from benchmarks.implementations.work import Gpt2Size, Trainer

NORMS, PRODUCTS = ("ln_1", "ln_2"), ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
LAYER = [f"{name}.{kind}" for name in (*NORMS, *PRODUCTS) for kind in ("weight", "bias")]


def load(weights: str, layers: int, stacked: bool) -> dict[str, Any]:
    """Loads the weights of a file in GPT-2's format: a tree with `layers`, stacked or a list."""
    flat = {name.removeprefix("transformer."): value for name, value in load_file(weights).items()}
    blocks = [{name: jnp.asarray(flat[f"h.{i}.{name}"]) for name in LAYER} for i in range(layers)]
    return {
        "wte": jnp.asarray(flat["wte.weight"]),
        "wpe": jnp.asarray(flat["wpe.weight"]),
        "ln_f.weight": jnp.asarray(flat["ln_f.weight"]),
        "ln_f.bias": jnp.asarray(flat["ln_f.bias"]),
        "layers": jax.tree.map(lambda *rows: jnp.stack(rows), *blocks) if stacked else blocks,
    }


def layer_norm(x, scale, bias):
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5) * scale + bias


def block(x, w, heads: int):
    rows, length, width = x.shape
    qkv = layer_norm(x, w["ln_1.weight"], w["ln_1.bias"]) @ w["attn.c_attn.weight"] + w["attn.c_attn.bias"]
    query, key, value = (y.reshape(rows, length, heads, -1).swapaxes(1, 2) for y in jnp.split(qkv, 3, axis=-1))
    scores = jnp.einsum("bhqd,bhkd->bhqk", query, key) * (width // heads) ** -0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e30)
    mixed = jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), value).swapaxes(1, 2).reshape(x.shape)
    x = x + mixed @ w["attn.c_proj.weight"] + w["attn.c_proj.bias"]
    hidden = layer_norm(x, w["ln_2.weight"], w["ln_2.bias"]) @ w["mlp.c_fc.weight"] + w["mlp.c_fc.bias"]
    return x + jax.nn.gelu(hidden) @ w["mlp.c_proj.weight"] + w["mlp.c_proj.bias"]


def loss_of(params, tokens, targets, size: Gpt2Size, options: set[str]):
    x = params["wte"][tokens] + params["wpe"][: tokens.shape[1]]
    run = functools.partial(block, heads=size.heads)
    if "remat" in options:
        run = jax.checkpoint(run, policy=jax.checkpoint_policies.dots_saveable, prevent_cse="scan" not in options)
    if "scan" in options:
        x = jax.lax.scan(lambda x, w: (run(x, w), None), x, params["layers"])[0]
    else:
        for w in params["layers"]:
            x = run(x, w)
    logits = layer_norm(x, params["ln_f.weight"], params["ln_f.bias"]) @ params["wte"].T
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(targets, 0))
    return jnp.where(targets >= 0, losses, 0).sum() / (targets >= 0).sum()


def trainer(size: Gpt2Size, weights: str, options: set[str]) -> Trainer:
    params = load(weights, size.layers, "scan" in options)
    matrices = jax.tree_util.tree_map_with_path(
        lambda path, _: str(path[-1].key).endswith(("wte", "c_attn.weight", "c_proj.weight", "c_fc.weight")), params
    )
    tokens, targets = jnp.asarray(size.rows_of_tokens()), jnp.asarray(size.targets())
    return trainer_of(lambda params: loss_of(params, tokens, targets, size, options), params, matrices)
