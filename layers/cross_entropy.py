"""Cross-entropy over the vocabulary, a piece of the sequence at a time, with z-loss and label smoothing."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from layers.errors import UsageError


class LossSums(struct.PyTreeNode):
    """Sums over positions, each weighted by its loss weight; divide by `weight` for means."""

    objective: Float[Array, ""]  # what is minimised: smoothed cross-entropy plus z-loss
    loss: Float[Array, ""]  # cross-entropy in nats, without smoothing and z-loss
    correct: Float[Array, ""]  # positions whose likeliest token is the target
    weight: Float[Array, ""]  # loss weights


def cross_entropy_sums(
    logits: Float[Array, "b s v"],
    targets: Int[Array, "b s"],
    weights: Float[Array, "b s"],
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    vocab_size: int | None = None,
) -> LossSums:
    """Cross-entropy of one piece, in float32. Logits from `vocab_size` on are padding, which no target names.

    With p the softmax of the logits and e = label_smoothing, the objective at a position is
    `-(1 - e) log p[target] - e mean_v(log p[v]) + z_loss * log(Z)^2` (Szegedy et al. 2016, section 7; z-loss:
    Chowdhery et al. 2022, PaLM, section 5), Z being the softmax's denominator.
    """
    logits = logits.astype(jnp.float32)
    log_z = jax.nn.logsumexp(logits, axis=-1)
    target_logit = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    loss = log_z - target_logit
    objective = loss
    if label_smoothing:
        used = logits.shape[-1] if vocab_size is None else vocab_size
        uniform = log_z - jnp.sum(jnp.where(jnp.arange(logits.shape[-1]) < used, logits, 0), axis=-1) / used
        objective = (1 - label_smoothing) * loss + label_smoothing * uniform
    if z_loss:
        objective = objective + z_loss * jnp.square(log_z)
    correct = (jnp.argmax(logits, axis=-1) == targets).astype(jnp.float32)
    return LossSums(
        objective=jnp.sum(objective * weights),
        loss=jnp.sum(loss * weights),
        correct=jnp.sum(correct * weights),
        weight=jnp.sum(weights),
    )


def chunked_cross_entropy(
    features: Any,
    to_logits: Callable[[Any], jax.Array],
    targets: Int[Array, "b s"],
    weights: Float[Array, "b s"],
    chunk: int | None = None,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    vocab_size: int | None = None,
) -> LossSums:
    """`cross_entropy_sums` of `to_logits(features)`, never holding the logits of more than `chunk` positions a row.

    `features` is an array of (B, S, ...), or a tree of them. The backward pass computes each piece's logits again, so
    it holds no more either.

    Raises:
      UsageError: `chunk` does not divide the sequence.
    """
    length = targets.shape[1]
    if chunk is None or chunk >= length:
        return cross_entropy_sums(to_logits(features), targets, weights, z_loss, label_smoothing, vocab_size)
    if length % chunk:
        raise UsageError(f"loss_chunk = {chunk} must divide the sequence length {length}.")

    def split(x: jax.Array) -> jax.Array:
        # Position p goes to piece p % pieces: devices that share a sequence keep their own positions.
        return jnp.moveaxis(x.reshape(x.shape[0], chunk, length // chunk, *x.shape[2:]), 2, 0)

    @jax.checkpoint
    def piece(features, targets, weights):
        return cross_entropy_sums(to_logits(features), targets, weights, z_loss, label_smoothing, vocab_size)

    def add(total: LossSums, xs) -> tuple[LossSums, None]:
        return jax.tree.map(jnp.add, total, piece(*xs)), None

    zero = LossSums(*[jnp.float32(0)] * 4)
    return jax.lax.scan(add, zero, jax.tree.map(split, (features, targets, weights)))[0]
