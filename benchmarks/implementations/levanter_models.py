"""Levanter's GPT-2 and Llama with optax, in one jitted update like that of its Trainer.

Options: "no_remat" keeps the activations of the blocks; by default they are recomputed, as in Levanter.
"""

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
from haliax.state_dict import from_torch_compatible_state_dict
from levanter.models.gpt2 import Gpt2Config
from levanter.models.llama import LlamaConfig
from levanter.models.lm_model import LmExample, LmHeadModel, compute_next_token_loss
from safetensors.numpy import load_file

from benchmarks.implementations.optax_training import trainer_of
from benchmarks.implementations.work import Gpt2Size, LlamaSize, Trainer


def load(size: Gpt2Size, weights: str, options: set[str]) -> LmHeadModel:
    """Loads the model with the weights of a file in the size's format."""
    sizes = {
        "seq_len": size.context,
        "hidden_dim": size.width,
        "num_layers": size.layers,
        "num_heads": size.heads,
        "gradient_checkpointing": "no_remat" not in options,
    }
    arrays = load_file(weights)
    if isinstance(size, LlamaSize):
        config = LlamaConfig(
            **sizes, intermediate_dim=size.hidden, num_kv_heads=size.kv_heads, tie_word_embeddings=True
        )
    else:
        config = Gpt2Config(**sizes)
        arrays = {name.removeprefix("transformer."): value for name, value in arrays.items()}
    model = config.model_type.init(hax.Axis("vocab", size.vocab), config, key=jax.random.key(0))
    return from_torch_compatible_state_dict(model, arrays)


def trainer(size: Gpt2Size, weights: str, options: set[str]) -> Trainer:
    model = load(size, weights, options)
    batch = hax.Axis("batch", size.rows)
    tokens = hax.named(jnp.asarray(size.rows_of_tokens()), (batch, model.Pos))
    decayed = jax.tree_util.tree_map_with_path(
        lambda path, _: (
            ".weight" in (name := jax.tree_util.keystr(path))
            and not any(part in name for part in ("ln_", "norm", "position"))
        ),
        eqx.filter(model, eqx.is_inexact_array),
    )
    mask = LmExample.causal_loss_mask(model.Pos)
    example = LmExample(tokens=tokens, loss_mask=mask)

    arrays, static = eqx.partition(model, eqx.is_inexact_array)

    def loss(arrays):
        # Its mean passes JAX a mask of floats, which newer versions reject.
        losses = compute_next_token_loss(eqx.combine(arrays, static), example, reduction=None)
        return (losses * mask).array.sum() / (size.rows * mask.array.sum())

    return trainer_of(loss, arrays, decayed)
