"""Slots: experts with room for a fixed number of tokens of each group, as GShard has them.

Dimensions: G groups, S tokens of a group, E experts, C slots of an expert per group.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from layers.collectives import all_reduce_unsharded
from layers.feed_forward.routing import Choices


class Slots(struct.PyTreeNode):
    """Assignment of tokens to slots. A positive `combine_gsec` sends the token to the slot and weights the output."""

    combine_gsec: Float[Array, "g s e c"]
    dropped: Float[Array, ""]  # share of choices that found no slot; for expert choice, of tokens without an expert


def auto_capacity(tokens: int, num_experts: int, factor: float, at_least: int = 0) -> int:
    """Returns slots per expert and group: `tokens * factor / num_experts` rounded up to a multiple of 4, 4 at least."""
    share = int(tokens * factor / num_experts) or 4
    return -(-share // 4) * 4 if at_least < share else at_least


def in_slots(choices: Choices, capacity: int) -> Slots:
    """Gives each choice a slot of its expert, first come first served; first choices before second ones.

    Args:
      choices: the experts that tokens choose.
      capacity: slots per expert and group (C).
    """
    experts, groups = choices.load_e.size, choices.expert_gsk.shape[0]
    filled, computed, places = jnp.zeros((groups, 1, experts)), [], []
    for k in range(choices.expert_gsk.shape[-1]):
        chosen = jax.nn.one_hot(choices.expert_gsk[..., k], experts) * choices.taken_gsk[..., k, None]
        place = jnp.cumsum(chosen, axis=1) - chosen + filled
        chosen = chosen * (place < capacity)
        filled += jnp.sum(chosen, axis=1, keepdims=True)
        computed.append(chosen)
        places.append(place)
    gate_gsk = choices.gates(jnp.stack([jnp.sum(chosen, axis=-1) > 0 for chosen in computed], axis=-1))
    combine = jnp.zeros((*choices.expert_gsk.shape[:2], experts, capacity))
    for k, (chosen, place) in enumerate(zip(computed, places, strict=True)):
        slot = jax.nn.one_hot(jnp.sum(chosen * place, axis=-1).astype(jnp.int32), capacity)
        combine += gate_gsk[..., k, None, None] * chosen[..., None] * slot[:, :, None, :]
    dropped = 1 - all_reduce_unsharded(jnp.sum(filled)) / jnp.maximum(jnp.sum(choices.load_e), 1)
    return Slots(combine, dropped)


def expert_choice_slots(
    logits_gse: Float[Array, "g s e"], real_gs: Bool[Array, "g s"], capacity: int
) -> tuple[Slots, Float[Array, " e"]]:
    """Gives each expert its `capacity` most probable tokens (Zhou et al. 2022, Expert Choice, section 3.2).

    The load is balanced by construction, and a token may have any number of experts, including none. The assignment of
    a token depends on later tokens too: in a causal model this leaks information from the future.

    Returns:
      The slots, and the number of tokens of each expert.
    """
    tokens = logits_gse.shape[1]
    probability_gse = jax.nn.softmax(logits_gse, axis=-1) * real_gs[..., None]
    gate_gec, token_gec = jax.lax.top_k(probability_gse.swapaxes(1, 2), min(capacity, tokens))
    taken_gecs = jax.nn.one_hot(token_gec, tokens, dtype=jnp.float32)
    combine_gsec = jnp.einsum("gec,gecs->gsec", gate_gec, taken_gecs)
    count_gs = jnp.sum(combine_gsec > 0, axis=(2, 3))
    missed = all_reduce_unsharded(jnp.sum((count_gs == 0) & real_gs))
    load_e = all_reduce_unsharded(jnp.sum(combine_gsec > 0, axis=(0, 1, 3)).astype(jnp.float32))
    dropped = missed / jnp.maximum(all_reduce_unsharded(jnp.sum(real_gs)), 1)
    return Slots(combine_gsec, dropped), load_e
