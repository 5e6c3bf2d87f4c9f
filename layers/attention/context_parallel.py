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
from layers.collectives import on_each_device
from layers.specs import P, Specs, axes_of, constrain, split_of

_ARRAYS = ("query_bsnd", "key_bskd", "value_bskd")


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
    specs = heads_of(activations)
    query, key, value = (
        constrain(x, specs, name)
        for x, name in zip((query, key.swapaxes(1, 2), value.swapaxes(1, 2)), _ARRAYS, strict=True)
    )
    return query, key.swapaxes(1, 2), value.swapaxes(1, 2)


def by_positions(activations: Specs, mixed: Float[Array, "b s n e"]) -> Float[Array, "b s n e"]:
    """Returns the mixture of `by_heads` for all heads and a share of the positions."""
    mixed = constrain(mixed, heads_of(activations), "query_bsnd")
    return constrain(mixed, Specs(query_bsnd=_row(activations, "query_bsnd")), "query_bsnd")


def _row(activations: Specs, name: str) -> P:
    """Returns the placement of queries, keys or values; that of values if it has no row."""
    return activations[_stated(activations, name)]


def _stated(activations: Specs, name: str) -> str:
    return name if name in activations else "value_bskd"


def heads_of(activations: Specs) -> Specs:
    """Returns the placement of the arrays of `by_heads`: the axis of the positions splits heads."""
    rows = {name: _row(activations, name) for name in _ARRAYS}
    moved = lambda row: P(row[0], None, (*axes_of(row[2]), *axes_of(row[1])), row[3])
    return Specs(**{name: moved(row) for name, row in rows.items()})


@dataclasses.dataclass(frozen=True)
class Parts:
    """Rows and heads of attention on each device, for programs that the compiler does not split."""

    rows: tuple[str, ...] | None  # mesh axes that split the rows of queries, keys and values; None: they are on all
    heads: tuple[str, ...] | None  # and their heads
    devices: int  # along the latter

    @classmethod
    def of(cls, activations: Specs, query: Float[Array, "b s n d"]) -> "Parts":
        """Returns the parts in which `activations` have queries, as far as axes divide their sizes."""
        rows, heads = (_dividing(activations, dim, query.shape[dim]) for dim in (0, 2))
        return cls(tuple(rows) or None, tuple(heads) or None, math.prod(heads.values()))

    def repeated(self, x: Array | None) -> Array | None:
        """Repeats the heads of keys, dimension 1, until the devices divide their number."""
        if x is None:
            return None
        times = self.devices // math.gcd(self.devices, x.shape[1])
        return x if times == 1 else jnp.repeat(x, times, axis=1)


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
    of = Parts.of(activations, query)
    b, h = of.rows, of.heads
    keys = Keys(of.repeated(keys.key), of.repeated(keys.value), keys.ids)
    others = others._replace(dropout_keys=of.repeated(others.dropout_keys))

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
    return on_each_device(local, specs, P(b, axis, h))(jnp.arange(parts), query, keys, bias, others)


def _dividing(activations: Specs, dim: int, size: int) -> dict[str, int]:
    """Returns the mesh axes that split a dimension of queries, with their sizes; none if they do not divide `size`."""
    split = split_of(activations, _stated(activations, "query_bsnd"), dim)
    return {} if size % math.prod(split.values()) else split


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
