"""Cross-entropy over the vocabulary, in chunks of the sequence, with z-loss and label smoothing; scores of tokens."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax.extend import core
from jaxtyping import Array, Float, Int

from layers.errors import UsageError


class LossSums(struct.PyTreeNode):
    """Sums over positions, each weighted by its loss weight; dividing by `weight` gives means."""

    objective: Float[Array, ""]  # the minimised value: smoothed cross-entropy plus z-loss
    loss: Float[Array, ""]  # cross-entropy in nats, without smoothing and z-loss
    correct: Float[Array, ""]  # weighted number of positions whose most likely token is the target
    weight: Float[Array, ""]  # sum of the loss weights

    @classmethod
    def zero(cls) -> "LossSums":
        """Returns the sums of no positions."""
        return cls(*[jnp.float32(0)] * 4)


def cross_entropy_sums(
    logits: Float[Array, "b s v"],
    targets: Int[Array, "b s"],
    weights: Float[Array, "b s"],
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    vocab_size: int | None = None,
) -> LossSums:
    """Returns the cross-entropy of one chunk, in float32. Logits from `vocab_size` on are padding, never a target.

    With p the softmax of the logits and e = label_smoothing, the objective at a position is
    `-(1 - e) log p[target] - e mean_v(log p[v]) + z_loss * log(Z)^2` (Szegedy et al. 2016, section 7; z-loss:
    Chowdhery et al. 2022, PaLM, section 5), where Z is the softmax's denominator.
    """
    logits = logits.astype(jnp.float32)
    log_z = jax.nn.logsumexp(logits, axis=-1)
    target_logit = _logits_of(targets, logits)
    loss = log_z - target_logit
    objective = loss
    if label_smoothing:
        used = logits.shape[-1] if vocab_size is None else vocab_size
        uniform = log_z - jnp.sum(jnp.where(jnp.arange(logits.shape[-1]) < used, logits, 0), axis=-1) / used
        objective = (1 - label_smoothing) * loss + label_smoothing * uniform
    if z_loss:
        objective = objective + z_loss * jnp.square(log_z)
    correct = _are_predicted(targets, *jax.lax.stop_gradient((target_logit, logits))).astype(jnp.float32)
    return LossSums(
        objective=jnp.sum(objective * weights),
        loss=jnp.sum(loss * weights),
        correct=jnp.sum(correct * weights),
        weight=jnp.sum(weights),
    )


def _are_predicted(tokens: Int[Array, "b s"], of_tokens: Float[Array, "b s"], logits: Float[Array, "b s v"]):
    """Returns `argmax(logits) == tokens`; False where the token's logit is NaN.

    It compares all logits with the token's, which on a CPU takes a third of the time of XLA's argmax.
    """
    places, of_tokens = jnp.arange(logits.shape[-1]), of_tokens[..., None]
    is_before = places < tokens[..., None]
    others = places != tokens[..., None]
    exceeds = jnp.where(is_before, logits >= of_tokens, (logits > of_tokens) & others)
    return ~jnp.any(exceeds, axis=-1) & ~jnp.isnan(of_tokens[..., 0])


def _logits_of(tokens: Int[Array, "b s"], logits: Float[Array, "b s v"]) -> Float[Array, "b s"]:
    if _splits_twice_and_manually():
        return jnp.sum(jnp.where(jnp.arange(logits.shape[-1]) == tokens[..., None], logits, 0), axis=-1)
    return jnp.take_along_axis(logits, tokens[..., None], axis=-1)[..., 0]


def _splits_twice_and_manually() -> bool:
    """Returns whether XLA (jaxlib 0.10.2) may end the process when it partitions a gather along rows of logits.

    It does if one axis is manual, one splits positions, and one splits the vocabulary.
    """
    mesh = jax.sharding.get_abstract_mesh()
    others = [axis for axis in mesh.axis_names if axis not in mesh.manual_axes and mesh.shape[axis] > 1]
    return bool(mesh.manual_axes) and len(others) > 1


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
    """`cross_entropy_sums` of `to_logits(features)`, with the logits of at most `chunk` positions per row in memory.

    `features` is an array of (B, S, ...), or a tree of them. If a gradient is requested, each chunk's gradient is
    computed together with its loss, so that no logits are computed twice. With a `chunk`, only `objective` has a
    gradient, with respect to features and weights of the head.

    Raises:
      UsageError: `chunk` does not divide the sequence.
    """
    length = targets.shape[1]
    options = (z_loss, label_smoothing, vocab_size)
    if chunk is None or chunk >= length:
        return cross_entropy_sums(to_logits(features), targets, weights, *options)
    first = jax.tree.map(lambda x: jax.ShapeDtypeStruct((x.shape[0], chunk, *x.shape[2:]), x.dtype), features)
    head = jax.make_jaxpr(to_logits)(first)
    read = head.consts  # inputs other than features: weights, and token ids
    learned = [jnp.issubdtype(x.dtype, jnp.inexact) for x in read]
    head_weights = [x for x, is_learned in zip(read, learned, strict=True) if is_learned]
    fixed = [x for x, is_learned in zip(read, learned, strict=True) if not is_learned]

    def piece(features: Any, head_weights: Any, fixed: Any, targets: jax.Array, weights: jax.Array) -> LossSums:
        of_kind = {True: iter(head_weights), False: iter(fixed)}
        consts = [next(of_kind[is_learned]) for is_learned in learned]
        evaluate: Any = core.jaxpr_as_fun(core.ClosedJaxpr(head.jaxpr, consts))
        [logits] = evaluate(*jax.tree.leaves(features))
        return cross_entropy_sums(logits, targets, weights, *options)

    features, targets, weights = _split((features, targets, weights), chunk, length)
    return _summed(piece)(features, head_weights, fixed, targets, weights)


def _split(tree: Any, chunk: int, length: int) -> Any:
    """Returns arrays (B, S, ...) as (S / chunk, B, chunk, ...).

    Position p belongs to piece p % pieces, so that devices that share a sequence keep their own positions.

    Raises:
      UsageError: `chunk` does not divide the sequence.
    """
    if length % chunk:
        raise UsageError(f"loss_chunk must divide the sequence length {length} (got {chunk}).")
    split = lambda x: jnp.moveaxis(x.reshape(x.shape[0], chunk, length // chunk, *x.shape[2:]), 2, 0)
    return jax.tree.map(split, tree)


class TokenScores(struct.PyTreeNode):
    """Log-probabilities of given tokens at each position, and the likeliest token there."""

    log_p_bst: Float[Array, "b s t"]  # in nats
    likeliest_bs: Int[Array, "b s"]


def chunked_token_scores(
    features: Any, to_logits: Callable[[Any], jax.Array], tokens: Int[Array, "b s t"], chunk: int | None = None
) -> TokenScores:
    """Returns the scores of T tokens at each position, with the logits of at most `chunk` positions per row in memory.

    `features` is an array of (B, S, ...), or a tree of them. Log-probabilities are computed in float32.

    Raises:
      UsageError: `chunk` does not divide the sequence.
    """

    def scores(features: Any, tokens: jax.Array) -> TokenScores:
        logits = to_logits(features).astype(jnp.float32)
        of_tokens = jnp.take_along_axis(logits, tokens, axis=-1)
        log_z = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
        return TokenScores(of_tokens - log_z, jnp.argmax(logits, axis=-1).astype(jnp.int32))

    return in_chunks(scores, (features, tokens), tokens.shape[1], chunk)


def in_chunks(function: Callable[..., Any], arguments: tuple[Any, ...], length: int, chunk: int | None = None) -> Any:
    """Returns `function(*arguments)` of arrays (B, S, ...), with the logits of at most `chunk` positions in memory.

    Raises:
      UsageError: `chunk` does not divide S, which is `length`.
    """
    if chunk is None or chunk >= length:
        return function(*arguments)
    pieces = jax.lax.map(lambda xs: function(*xs), _split(arguments, chunk, length))
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 2).reshape(x.shape[1], length, *x.shape[3:]), pieces)


def _summed(piece: Callable[..., LossSums]) -> Callable[..., LossSums]:
    """Returns `piece` summed over chunks; a requested gradient is computed in the same loop.

    `piece` is a function of (features, weights of the head, other inputs of the head, targets, loss weights). Features,
    targets and loss weights of the sum have a leading dimension of chunks.
    """

    def with_objective(*arguments: Any) -> tuple[jax.Array, LossSums]:
        sums = piece(*arguments)
        return sums.objective, sums

    @jax.custom_vjp
    def summed(features: Any, head_weights: Any, fixed: Any, targets: jax.Array, weights: jax.Array) -> LossSums:
        def add(total: LossSums, xs: Any) -> tuple[LossSums, None]:
            features, *judged = xs
            return jax.tree.map(jnp.add, total, piece(features, head_weights, fixed, *judged)), None

        return jax.lax.scan(add, LossSums.zero(), (features, targets, weights))[0]

    def forward(features: Any, head_weights: Any, fixed: Any, targets: Any, weights: Any) -> tuple[LossSums, Any]:
        def add(so_far: Any, xs: Any) -> tuple[Any, Any]:
            total, by_weights = so_far
            features, *judged = xs
            gradient = jax.grad(with_objective, argnums=(0, 1), has_aux=True)
            (by_features, parts), sums = gradient(features, head_weights, fixed, *judged)
            by_weights = [total + part.astype(jnp.float32) for total, part in zip(by_weights, parts, strict=True)]
            return (jax.tree.map(jnp.add, total, sums), by_weights), by_features

        so_far = (LossSums.zero(), [jnp.zeros(w.shape, jnp.float32) for w in head_weights])  # sums of many numbers
        (sums, by_weights), by_features = jax.lax.scan(add, so_far, (features, targets, weights))
        return sums, (by_features, [g.astype(w.dtype) for g, w in zip(by_weights, head_weights, strict=True)])

    def backward(gradients: Any, cotangent: LossSums) -> Any:
        scaled = jax.tree.map(lambda g: (g * cotangent.objective).astype(g.dtype), gradients)
        return *scaled, None, None, None

    summed.defvjp(forward, backward)
    return summed
