"""Routing of tokens to experts: which experts a token chooses, and the weights of their outputs.

GShard's top-2 gating, and top-k gating with softmax or sigmoid scores. Losses and statistics cover all groups, even if
a computation holds one device's groups (layers.collectives). Dimensions: G groups, S tokens of a group, E experts, K
choices of a token.
"""

from typing import Literal, get_args

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from layers.collectives import all_reduce_unsharded, manual_parts
from layers.errors import UsageError

SecondExpert = Literal["all", "sampling", "random", "none"]
# The weight of an expert's output, from the token's scores of all experts. softmax_then_top_k: its softmax among all
# experts (Shazeer et al. 2017, without noise). top_k_then_softmax: its softmax among the chosen ones (Jiang et al.
# 2024, Mixtral, section 2.1). sigmoid_then_top_k: its sigmoid. normalized_sigmoid: the same, divided by the sum over
# the chosen ones (DeepSeek-AI 2024, DeepSeek-V3, equations 13 to 15).
Gates = Literal["softmax_then_top_k", "top_k_then_softmax", "sigmoid_then_top_k", "normalized_sigmoid"]


class Choices(struct.PyTreeNode):
    """The experts that tokens choose, in the order of their priority."""

    expert_gsk: Int[Array, "g s k"]
    gate_gsk: Float[Array, "g s k"]  # weight of the expert's output, before tokens are dropped
    taken_gsk: Bool[Array, "g s k"]  # False: padding, or a second expert that is not used
    aux_loss: Float[Array, ""]  # 1 if balanced (less with padding and legacy gates)
    load_e: Float[Array, " e"]  # choices of each expert
    divide_by_sum: bool = struct.field(pytree_node=False, default=False)  # of the gates of choices that are computed

    @property
    def load_max(self) -> Float[Array, ""]:
        """Choices of the busiest expert divided by the mean."""
        return jnp.max(self.load_e) / jnp.maximum(jnp.mean(self.load_e), 1e-9)

    def gates(self, computed_gsk: Bool[Array, "g s k"]) -> Float[Array, "g s k"]:
        """Returns the weights of outputs if these choices are computed, and no other."""
        gate_gsk = self.gate_gsk * computed_gsk
        if not self.divide_by_sum:
            return gate_gsk
        total = jnp.sum(gate_gsk, axis=-1, keepdims=True)
        return gate_gsk / jnp.where(total > 0, total, 1.0)


def top2_choices(
    logits_gse: Float[Array, "g s e"],
    real_gs: Bool[Array, "g s"],
    second_expert: SecondExpert = "all",
    threshold: float = 0.0,
    legacy: bool = True,
    rng: jax.Array | None = None,
) -> Choices:
    """Chooses two experts for each token (Lepikhin et al. 2021, GShard, algorithm 1).

    Args:
      logits_gse: router logits in float32.
      real_gs: False at padding, which is not routed.
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
    expert1 = jnp.argmax(probability, axis=-1)
    first = jax.nn.one_hot(expert1, experts)
    gate1 = jnp.sum(probability * first, axis=-1)
    aux = _balance(first * real, probability * real, None if legacy else real)
    if second_expert == "none":
        load_e = all_reduce_unsharded(jnp.sum(first * real, axis=(0, 1)))
        return Choices(expert1[..., None], gate1[..., None], real_gs[..., None], aux, load_e)
    expert2 = _second_choice(logits_gse, probability, first, second_expert, rng)
    second = jax.nn.one_hot(expert2, experts)
    # With a certain first choice all others have probability 0, and so has the second one, if it is the first again.
    gate2 = jnp.sum(probability * (1 - first) * second, axis=-1)
    if legacy:
        total = gate1 + gate2 + 1e-9
        gate1, gate2 = gate1 / total, gate2 / total
    kept = real_gs
    if second_expert == "random" and threshold > 0 and rng is not None:
        kept = real_gs & (jax.random.uniform(rng, gate2.shape) < gate2 / threshold)
    load_e = all_reduce_unsharded(jnp.sum(first * real + second * kept[..., None], axis=(0, 1)))
    expert_gsk, gate_gsk, taken_gsk = (
        jnp.stack(pair, axis=-1) for pair in ((expert1, expert2), (gate1, gate2), (real_gs, kept))
    )
    return Choices(expert_gsk, gate_gsk, taken_gsk, aux, load_e, divide_by_sum=not legacy)


def top_k_choices(
    logits_gse: Float[Array, "g s e"],
    real_gs: Bool[Array, "g s"],
    experts_per_token: int,
    gates: Gates = "top_k_then_softmax",
    bias_e: Float[Array, " e"] | None = None,
) -> Choices:
    """Chooses the `experts_per_token` experts of highest score for each token.

    Args:
      logits_gse: router logits in float32.
      real_gs: False at padding, which is not routed.
      experts_per_token: number of experts of a token (k).
      gates: the scores, and the weights of outputs: see `Gates`.
      bias_e: added to the scores for the choice alone (Wang et al. 2024, Auxiliary-Loss-Free Load Balancing,
        section 3).

    The auxiliary loss is that of `top2_choices`, with d_e as the share of all choices; p_e are scores divided by their
    sum.

    Raises:
      UsageError: there are fewer experts than `experts_per_token`, or `gates` is unknown.
    """
    experts = logits_gse.shape[-1]
    if not 1 <= experts_per_token <= experts:
        raise UsageError(f"experts_per_token must be between 1 and num_experts = {experts} (got {experts_per_token}).")
    if gates not in get_args(Gates):
        raise UsageError(f"Unknown gates '{gates}'. Choose one of {', '.join(get_args(Gates))}.")
    is_sigmoid = gates in ("sigmoid_then_top_k", "normalized_sigmoid")
    score_gse = jax.nn.sigmoid(logits_gse) if is_sigmoid else jax.nn.softmax(logits_gse, axis=-1)
    ranked = logits_gse if bias_e is None else jax.lax.stop_gradient(score_gse) + bias_e
    expert_gsk = _highest(ranked, experts_per_token)
    if gates == "top_k_then_softmax":
        gate_gsk = jax.nn.softmax(jnp.take_along_axis(logits_gse, expert_gsk, axis=-1), axis=-1)
    else:
        gate_gsk = jnp.take_along_axis(score_gse, expert_gsk, axis=-1)
    if gates == "normalized_sigmoid":
        gate_gsk /= jnp.sum(gate_gsk, axis=-1, keepdims=True) + 1e-20  # as DeepSeek-V3's implementation
    probability = score_gse / jnp.sum(score_gse, axis=-1, keepdims=True) if is_sigmoid else score_gse
    real = real_gs.astype(jnp.float32)[..., None]
    choices = [jax.nn.one_hot(expert_gsk[..., k], experts) * real for k in range(experts_per_token)]
    chosen_gse = sum(choices[1:], choices[0])
    aux = _balance(chosen_gse / experts_per_token, probability * real, real)
    load_e = all_reduce_unsharded(jnp.sum(chosen_gse, axis=(0, 1)))
    taken_gsk = jnp.broadcast_to(real_gs[..., None], expert_gsk.shape)
    return Choices(expert_gsk, gate_gsk, taken_gsk, aux, load_e)


def _highest(score_gse: Float[Array, "g s e"], count: int) -> Int[Array, "g s k"]:
    """Returns the experts of the highest scores, as `jax.lax.top_k` does; for that, compilers gather all groups."""
    found = []
    for _ in range(count):
        found.append(jnp.argmax(score_gse, axis=-1))
        score_gse = jnp.where(jax.nn.one_hot(found[-1], score_gse.shape[-1], dtype=bool), -jnp.inf, score_gse)
    return jnp.stack(found, axis=-1)


def _second_choice(logits, probability, first, policy: SecondExpert, rng) -> Int[Array, "g s"]:
    if policy == "sampling" and rng is not None:
        masked = jnp.where(first > 0, -0.7 * jnp.finfo(jnp.float32).max, logits)
        return jax.random.categorical(rng, masked)
    return jnp.argmax(probability * (1 - first), axis=-1)


def _balance(first, probability, real) -> jax.Array:
    """Returns E sum_e(share of first choices * mean probability), averaged over groups."""
    share, mean = jnp.mean(first, axis=1), jnp.mean(probability, axis=1)
    if real is not None:
        fraction = jnp.mean(real, axis=1) + 1e-6
        share, mean = share / fraction, mean / fraction
    of_groups = jnp.mean(jnp.sum(jax.lax.stop_gradient(share) * mean, axis=-1))
    return probability.shape[-1] * all_reduce_unsharded(of_groups) / manual_parts()
