"""Routing of tokens to experts: GShard's top-2 gating, top-k gating, and expert choice.

Losses and statistics cover all groups, even if a computation holds one device's groups (layers.collectives).
Dimensions: G groups, S tokens of a group, E experts, C slots of an expert per group.
"""

from typing import Literal, get_args

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from layers.collectives import all_reduce_unsharded, manual_parts
from layers.errors import UsageError

SecondExpert = Literal["all", "sampling", "random", "none"]
Gates = Literal["softmax_then_top_k", "top_k_then_softmax"]


class Routing(struct.PyTreeNode):
    """Assignment of tokens to slots. A positive `combine_gsec` sends the token to the slot and weights the output."""

    combine_gsec: Float[Array, "g s e c"]
    aux_loss: Float[Array, ""]  # 1 if balanced (less with padding and legacy gates); always 0 for expert choice
    dropped: Float[Array, ""]  # share of choices that found no slot; for expert choice, of tokens without an expert
    load_max: Float[Array, ""]  # tokens of the busiest expert divided by the mean, before capacity


def auto_capacity(tokens: int, num_experts: int, factor: float, at_least: int = 0) -> int:
    """Returns slots per expert and group: `tokens * factor / num_experts` rounded up to a multiple of 4, 4 at least."""
    share = int(tokens * factor / num_experts) or 4
    return -(-share // 4) * 4 if at_least < share else at_least


def top2_routing(
    logits_gse: Float[Array, "g s e"],
    real_gs: Bool[Array, "g s"],
    capacity: int,
    second_expert: SecondExpert = "all",
    threshold: float = 0.0,
    legacy: bool = True,
    rng: jax.Array | None = None,
) -> Routing:
    """Routes each token to two experts, first come first served (Lepikhin et al. 2021, GShard, algorithm 1).

    Args:
      logits_gse: router logits in float32.
      real_gs: False at padding, which is not routed.
      capacity: slots per expert and group (C).
      second_expert: "all" takes the second most likely expert; "sampling" draws it in proportion to its probability;
        "random" takes the second most likely with probability `min(1, gate / threshold)`; "none" sends each token to
        one expert (Fedus et al. 2022, Switch).
      threshold: threshold of "random"; 0 keeps every second expert.
      legacy: divide the two gates by their sum before tokens are dropped, as the reference implementation does by
        default; otherwise after, so that the gates of every routed token sum to 1.
      rng: random numbers for "sampling" and "random"; None always takes the second most likely expert.

    The auxiliary loss is E sum_e(d_e p_e), averaged over groups: d_e is the share of the group's tokens whose first
    choice is e, p_e the mean probability of e. Without `legacy` both are shares of the real tokens.

    Raises:
      UsageError: `second_expert` is unknown.
    """
    if second_expert not in get_args(SecondExpert):
        raise UsageError(f"Unknown second_expert '{second_expert}'. Choose one of {', '.join(get_args(SecondExpert))}.")
    experts = logits_gse.shape[-1]
    real = real_gs.astype(jnp.float32)[..., None]
    probability = jax.nn.softmax(logits_gse, axis=-1)
    first = jax.nn.one_hot(jnp.argmax(probability, axis=-1), experts)
    gate1 = jnp.sum(probability * first, axis=-1)
    second = _second_choice(logits_gse, probability, first, second_expert, rng)
    gate2 = jnp.sum(probability * (1 - first) * second, axis=-1)
    if legacy and second_expert != "none":
        total = gate1 + gate2 + 1e-9
        gate1, gate2 = gate1 / total, gate2 / total
    if second_expert == "random" and threshold > 0 and rng is not None:
        kept = jax.random.uniform(rng, gate2.shape) < gate2 / threshold
        second = second * kept[..., None]
    first, second = first * real, second * real
    aux = _balance(first, probability * real, None if legacy else real)
    chosen = all_reduce_unsharded(jnp.sum(first) + jnp.sum(second))
    load = all_reduce_unsharded(jnp.sum(first + second, axis=(0, 1)))
    place1 = jnp.cumsum(first, axis=1) - first
    first = first * (place1 < capacity)
    place2 = jnp.cumsum(second, axis=1) - second + jnp.sum(first, axis=1, keepdims=True)
    second = second * (place2 < capacity)
    gate1, gate2 = gate1 * jnp.sum(first, axis=-1), gate2 * jnp.sum(second, axis=-1)
    if not legacy and second_expert != "none":
        total = gate1 + gate2
        total = jnp.where(total > 0, total, 1.0)
        gate1, gate2 = gate1 / total, gate2 / total
    combine = _slots(gate1, first, place1, capacity) + _slots(gate2, second, place2, capacity)
    dropped = 1 - all_reduce_unsharded(jnp.sum(first) + jnp.sum(second)) / jnp.maximum(chosen, 1)
    return Routing(combine, aux, dropped, jnp.max(load) / jnp.maximum(jnp.mean(load), 1e-9))


def top_k_routing(
    logits_gse: Float[Array, "g s e"],
    real_gs: Bool[Array, "g s"],
    capacity: int,
    experts_per_token: int,
    gates: Gates = "top_k_then_softmax",
) -> Routing:
    """Routes each token to its `experts_per_token` most probable experts, first choices first.

    Args:
      logits_gse: router logits in float32.
      real_gs: False at padding, which is not routed.
      capacity: slots per expert and group (C).
      experts_per_token: number of experts of a token (k).
      gates: "softmax_then_top_k" weights outputs by the probabilities among all experts (Shazeer et al. 2017 without
        noise); "top_k_then_softmax" by the probabilities among the chosen ones, which sum to 1 (Jiang et al. 2024,
        Mixtral, section 2.1).

    The auxiliary loss is that of `top2_routing`, with d_e as the share of all choices.

    Raises:
      UsageError: there are fewer experts than `experts_per_token`, or `gates` is unknown.
    """
    experts = logits_gse.shape[-1]
    if not 1 <= experts_per_token <= experts:
        raise UsageError(f"experts_per_token must be between 1 and num_experts = {experts} (got {experts_per_token}).")
    if gates not in get_args(Gates):
        raise UsageError(f"Unknown gates '{gates}'. Choose one of {', '.join(get_args(Gates))}.")
    probability = jax.nn.softmax(logits_gse, axis=-1)
    top_gsk, index_gsk = jax.lax.top_k(logits_gse, experts_per_token)
    if gates == "top_k_then_softmax":
        gate_gsk = jax.nn.softmax(top_gsk, axis=-1)
    else:
        gate_gsk = jnp.take_along_axis(probability, index_gsk, axis=-1)
    real = real_gs.astype(jnp.float32)[..., None]
    choices = [jax.nn.one_hot(index_gsk[..., k], experts) * real for k in range(experts_per_token)]
    all_choices = sum(choices[1:], choices[0])
    aux = _balance(all_choices / experts_per_token, probability * real, real)
    chosen = all_reduce_unsharded(jnp.sum(all_choices))
    load = all_reduce_unsharded(jnp.sum(all_choices, axis=(0, 1)))
    combine, kept = jnp.zeros((*real_gs.shape, experts, capacity)), jnp.zeros_like(choices[0][:, :1])
    for k, choice in enumerate(choices):
        place = jnp.cumsum(choice, axis=1) - choice + kept
        choice = choice * (place < capacity)
        kept += jnp.sum(choice, axis=1, keepdims=True)
        combine += _slots(gate_gsk[..., k], choice, place, capacity)
    dropped = 1 - all_reduce_unsharded(jnp.sum(kept)) / jnp.maximum(chosen, 1)
    return Routing(combine, aux, dropped, jnp.max(load) / jnp.maximum(jnp.mean(load), 1e-9))


def expert_choice_routing(logits_gse: Float[Array, "g s e"], real_gs: Bool[Array, "g s"], capacity: int) -> Routing:
    """Gives each expert its `capacity` most probable tokens (Zhou et al. 2022, Expert Choice, section 3.2).

    The load is balanced by construction, and a token may have any number of experts, including none. The assignment of
    a token depends on later tokens too: in a causal model this leaks information from the future.
    """
    tokens = logits_gse.shape[1]
    probability_gse = jax.nn.softmax(logits_gse, axis=-1) * real_gs[..., None]
    gate_gec, token_gec = jax.lax.top_k(probability_gse.swapaxes(1, 2), min(capacity, tokens))
    taken_gecs = jax.nn.one_hot(token_gec, tokens, dtype=jnp.float32)
    combine_gsec = jnp.einsum("gec,gecs->gsec", gate_gec, taken_gecs)
    count_gs = jnp.sum(combine_gsec > 0, axis=(2, 3))
    missed = all_reduce_unsharded(jnp.sum((count_gs == 0) & real_gs))
    load = all_reduce_unsharded(jnp.sum(combine_gsec > 0, axis=(0, 1, 3)).astype(jnp.float32))
    dropped = missed / jnp.maximum(all_reduce_unsharded(jnp.sum(real_gs)), 1)
    return Routing(combine_gsec, jnp.float32(0), dropped, jnp.max(load) / jnp.maximum(jnp.mean(load), 1e-9))


def _second_choice(logits, probability, first, policy: SecondExpert, rng):
    experts = logits.shape[-1]
    if policy == "none":
        return jnp.zeros_like(first)
    if policy == "sampling" and rng is not None:
        masked = jnp.where(first > 0, -0.7 * jnp.finfo(jnp.float32).max, logits)
        return jax.nn.one_hot(jax.random.categorical(rng, masked), experts)
    return jax.nn.one_hot(jnp.argmax(probability * (1 - first), axis=-1), experts)


def _balance(first, probability, real) -> jax.Array:
    """Returns E sum_e(share of first choices * mean probability), averaged over groups."""
    share, mean = jnp.mean(first, axis=1), jnp.mean(probability, axis=1)
    if real is not None:
        fraction = jnp.mean(real, axis=1) + 1e-6
        share, mean = share / fraction, mean / fraction
    of_groups = jnp.mean(jnp.sum(jax.lax.stop_gradient(share) * mean, axis=-1))
    return probability.shape[-1] * all_reduce_unsharded(of_groups) / manual_parts()


def _slots(gate, chosen, place, capacity: int):
    """Returns the gates at (token, expert, slot)."""
    slot = jax.nn.one_hot(jnp.sum(chosen * place, axis=-1).astype(jnp.int32), capacity)
    return gate[..., None, None] * chosen[..., None] * slot[:, :, None, :]
