"""Attention of rows whose positions are split over a mesh axis (context parallelism)."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from layers.attention.blocks import Keys, Others, Scores
from layers.attention.blockwise import attend, grouped, ungrouped
from layers.attention.exchanges import Gather, Ring, Sizes
from layers.specs import P, Specs, axes_of, constrain, split_of


def sequence_axis(activations: Specs, length: int) -> tuple[str, int]:
    """Returns the mesh axis that splits the positions of rows of `length`, and its size; "" and 1 if there is none.

    Attention exchanges keys over one axis, and needs as many positions on each device. Otherwise the compiler does.
    """
    split = split_of(activations, "value_bskd", 1)
    if len(split) != 1 or length % math.prod(split.values()):
        return "", 1
    return next(iter(split.items()))


def exchange_of(kind: str, how: Scores, block: int, length: int, activations: Specs) -> Ring | Gather:
    """Returns the exchange of keys and values of rows of `length`: "ring" or "all_gather".

    Devices have chunks from both ends of a row if that saves scores. It does not if a window covers little of the row:
    then keys go round a part of the ring, whatever the kind, because only the next devices need them.
    """
    axis, parts = sequence_axis(activations, length)
    sizes = Sizes.of(how, length // parts, block)
    ring = Ring(axis=axis, parts=parts, in_pairs=False)
    if how.causal and length % (2 * parts) == 0:
        paired = dataclasses.replace(ring, in_pairs=True)
        ring = paired if paired.scores(sizes) < ring.scores(sizes) else ring
    if kind == "ring" or (how.window is not None and not ring.in_pairs):
        return ring
    return Gather(axis=axis, parts=parts, in_pairs=ring.in_pairs)


def by_heads(
    activations: Specs, query: Float[Array, "b s n d"], key: Float[Array, "b k t d"], value: Float[Array, "b k t e"]
) -> tuple[Array, Array, Array]:
    """Returns arrays of complete rows for a share of the heads: the compiler exchanges them by all-to-all."""
    names = ("query_bsnd", "key_bskd", "value_bskd")
    query, key, value = (
        constrain(x, Specs(x_bshd=_heads_spec(activations, name)), "x_bshd")
        for x, name in zip((query, key.swapaxes(1, 2), value.swapaxes(1, 2)), names, strict=True)
    )
    return query, key.swapaxes(1, 2), value.swapaxes(1, 2)


def by_positions(activations: Specs, mixed: Float[Array, "b s n e"]) -> Float[Array, "b s n e"]:
    """Returns the mixture of `by_heads` for all heads and a share of the positions."""
    of_heads, of_positions = _heads_spec(activations, "query_bsnd"), _row(activations, "query_bsnd")
    mixed = constrain(mixed, Specs(x_bshd=of_heads), "x_bshd")
    return constrain(mixed, Specs(x_bshd=of_positions), "x_bshd")


def _row(activations: Specs, name: str) -> P:
    """Returns the placement of queries, keys or values; that of values if it has no row."""
    return activations[name if name in activations else "value_bskd"]


def _heads_spec(activations: Specs, name: str) -> P:
    spec = _row(activations, name)
    return P(spec[0], None, (*axes_of(spec[2]), *axes_of(spec[1])), spec[3])


def attend_split(
    how: Scores,
    exchange: Ring | Gather,
    block: int,
    query: Float[Array, "b s n d"],
    keys: Keys,
    bias: Float[Array, "n w"] | None,
    others: Others,
    activations: Specs,
) -> Float[Array, "b s n e"]:
    """Returns `layers.attention.blockwise.attend` of rows whose positions `exchange.axis` splits.

    The program inside is that of one device: the compiler splits none of its arrays. `activations` split batch and
    heads; heads of keys are repeated if the devices that split heads do not divide them.

    Args:
      how: from scores to weights.
      exchange: how keys reach the queries of other devices.
      block: number of queries, and of keys, in a block.
      query: already multiplied by the factor on the scores.
      keys: keys of shape (b, k, s, d), values (b, k, s, e), and their segments.
      bias: by head of queries and distance, for all distances of a row; otherwise as in `attend`.
      others: arrays without a gradient.
      activations: placement of queries and values.
    """
    axis, parts = exchange.axis, exchange.parts
    rows, heads = (_dividing(activations, dim, size) for dim, size in ((0, query.shape[0]), (2, query.shape[2])))
    keys, others = _repeated(keys, others, math.prod(heads.values()))
    b, h = tuple(rows) or None, tuple(heads) or None

    def local(shards: Int[Array, "1"], query: Any, keys: Keys, bias: Any, others: Others) -> Any:
        [shard] = shards
        others = others._replace(shard=shard)
        if exchange.in_pairs:
            pairs = lambda x, dim: to_pairs(x, dim, axis, parts, shard)
            query = pairs(query, 1)
            if others.query_ids is not None:
                others = others._replace(query_ids=pairs(others.query_ids, 1))
            if isinstance(exchange, Ring):
                keys = keys.each(pairs)
        if bias is not None:
            bias = bias.reshape(keys.key.shape[1], -1, bias.shape[1])
        mixed = ungrouped(attend(how, exchange, block, grouped(query, keys), keys, bias, others))
        return from_pairs(mixed, 1, axis, parts, shard) if exchange.in_pairs else mixed

    of_rows: Any = None if keys.ids is None else P(b, axis)
    of_heads: Any = None if others.dropout_keys is None else P(b, h)
    of_keys = Keys(P(b, h, axis), P(b, h, axis), of_rows)
    of_others = Others(of_rows, first_distance=P(), dropout_keys=of_heads)
    specs = P(axis), P(b, axis, h), of_keys, None if bias is None else P(h), of_others
    mesh = jax.sharding.get_abstract_mesh()
    names = {name for name in mesh.axis_names if name not in mesh.manual_axes}
    run = jax.shard_map(local, in_specs=specs, out_specs=P(b, axis, h), axis_names=names, check_vma=False)
    return run(jnp.arange(parts), query, keys, bias, others)


def _dividing(activations: Specs, dim: int, size: int) -> dict[str, int]:
    """Returns the mesh axes that split a dimension of values, with their sizes; none if they do not divide `size`."""
    split = split_of(activations, "value_bskd", dim)
    return {} if size % math.prod(split.values()) else split


def _repeated(keys: Keys, others: Others, devices: int) -> tuple[Keys, Others]:
    """Repeats heads of keys until `devices` divides their number."""
    times = devices // math.gcd(devices, keys.key.shape[1])
    if times == 1:
        return keys, others
    repeat = lambda x: None if x is None else jnp.repeat(x, times, axis=1)
    keys = Keys(repeat(keys.key), repeat(keys.value), keys.ids)
    return keys, others._replace(dropout_keys=repeat(others.dropout_keys))


def to_pairs(x: Array, dim: int, axis: str, parts: int, shard: Int[Array, ""]) -> Array:
    """Exchanges parts of a row for pairs of chunks: device i has chunks 2 i and 2 i + 1 of 2 n, then i and 2 n - 1 - i.

    Each half of a device's positions goes to one device.
    """
    even, odd = jnp.split(x, 2, axis=dim)
    even = jax.lax.ppermute(even, axis, [(i, _device(2 * i, parts)) for i in range(parts)])
    odd = jax.lax.ppermute(odd, axis, [(i, _device(2 * i + 1, parts)) for i in range(parts)])
    return jnp.concatenate(_ordered(even, odd, shard), axis=dim)


def from_pairs(x: Array, dim: int, axis: str, parts: int, shard: Int[Array, ""]) -> Array:
    """The inverse of `to_pairs`."""
    front, back = jnp.split(x, 2, axis=dim)
    even, odd = _ordered(front, back, shard)
    even = jax.lax.ppermute(even, axis, [(_device(2 * i, parts), i) for i in range(parts)])
    odd = jax.lax.ppermute(odd, axis, [(_device(2 * i + 1, parts), i) for i in range(parts)])
    return jnp.concatenate([even, odd], axis=dim)


def _device(chunk: int, parts: int) -> int:
    """Returns the device that has a chunk, counted from the front or the back."""
    return min(chunk, 2 * parts - 1 - chunk)


def _ordered(one: Array, other: Array, shard: Int[Array, ""]) -> list[Array]:
    """Returns both arrays, exchanged on devices of odd number, whose front chunk has an odd number."""
    is_odd = shard % 2 == 1
    return [jnp.where(is_odd, other, one), jnp.where(is_odd, one, other)]
