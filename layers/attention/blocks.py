"""Queries and keys in blocks, and the scores, masks and dropped weights of a pair of blocks."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, UInt32

from layers.attention.block_pairs import Places
from layers.positions.diagonals import diagonals

PADDING = (-1, -2)  # segment ids of queries and keys that fill the last block: no query sees such a key


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scores:
    """What becomes of scores: which are left out, and how the others become weights of values."""

    causal: bool = True
    window: int | None = None  # positions that a query sees, its own the last
    softcap: float | None = None
    function: str = "softmax"  # a name in layers.attention.score_functions
    extra_logit: float | None = None
    epsilon: float = 1e-6
    length: int | None = None
    dropout_rate: float = 0.0


class Others(NamedTuple):
    """Arrays without a gradient."""

    query_ids: Int[Array, "b s"] | None = None  # a query sees keys of its segment; None: of all
    start: Any = None  # position of the first query among the keys, if it is not 0
    first_distance: Any = None  # the distance of the first entry of the bias
    dropout_keys: UInt32[Array, "b k 2"] | None = None  # bits of threefry keys
    shard: Any = None  # number of this device along the axis that splits the positions


class Keys(NamedTuple):
    """Keys, their values, and their segments if rows have segments."""

    key: Any  # (b, k, t, d)
    value: Any  # (b, k, t, e)
    ids: Any = None  # (b, t)

    def each(self, exchange: Callable[[jax.Array, int], jax.Array]) -> "Keys":
        """Applies `exchange(array, dimension of the positions)` to all arrays."""
        return jax.tree.map(lambda x: exchange(x, 1 if x.ndim == 2 else 2), self)


def block_size(block: int, length: int, chunks: int) -> int:
    """Returns the number of positions in a block of `length` positions that are cut into equal chunks."""
    return min(block, length // chunks)


class Side:
    """Queries or keys, cut into chunks of consecutive positions, and these into blocks; the last may be shorter."""

    def __init__(self, length: int, block: int, starts: Any):
        chunks = len(starts)
        self.length, self.size = length, block_size(block, length, chunks)
        self.chunks, self.of_chunk = chunks, length // chunks
        self.in_chunk = -(-self.of_chunk // self.size)  # blocks
        self._starts = jnp.asarray(starts)

    def split(self, x: jax.Array, axis: int, padding: int = 0) -> jax.Array:
        """Moves blocks to the front: (..., s, ...) -> (i, ..., c, ...)."""
        x = x.reshape(*x.shape[:axis], self.chunks, self.of_chunk, *x.shape[axis + 1 :])
        widths = [(0, 0)] * x.ndim
        widths[axis + 1] = (0, self.in_chunk * self.size - self.of_chunk)
        x = jnp.pad(x, widths, constant_values=padding)
        x = x.reshape(*x.shape[:axis], self.chunks * self.in_chunk, self.size, *x.shape[axis + 2 :])
        return jnp.moveaxis(x, axis, 0)

    def join(self, x: jax.Array, axis: int) -> jax.Array:
        """The inverse of `split`."""
        x = jnp.moveaxis(x, 0, axis)
        x = x.reshape(*x.shape[:axis], self.chunks, self.in_chunk * self.size, *x.shape[axis + 2 :])
        x = jax.lax.slice_in_dim(x, 0, self.of_chunk, axis=axis + 1)
        return x.reshape(*x.shape[:axis], self.length, *x.shape[axis + 2 :])

    def first(self, block: jax.Array) -> jax.Array:
        """Returns the position of the first entry of a block."""
        return self._starts[block // self.in_chunk] + block % self.in_chunk * self.size

    def is_real(self, block: jax.Array) -> jax.Array:
        """Returns False at entries that fill the last block of a chunk."""
        return block % self.in_chunk * self.size + jnp.arange(self.size) < self.of_chunk


class Queries(Side):
    """Queries in blocks."""

    def __init__(self, query: jax.Array, block: int, starts: Any, ids: jax.Array | None):
        super().__init__(query.shape[3], block, starts)
        self.groups = query.shape[2]
        self.blocks = self.split_groups(query)
        self.ids = None if ids is None else self.split(ids, 1, PADDING[0])

    def split_groups(self, x: jax.Array, padding: int = 0) -> jax.Array:
        """(b, k, g, s, ...) -> (i, b, k, g * q, ...): the queries of a group are rows of one product."""
        x = self.split(x, 3, padding)
        return x.reshape(*x.shape[:3], -1, *x.shape[5:])

    def join_groups(self, x: jax.Array) -> jax.Array:
        """The inverse of `split_groups`."""
        x = x.reshape(*x.shape[:3], self.groups, -1, *x.shape[4:])
        return self.join(x, 3)


class Blocks:
    """Pairs of a block of queries and one of keys; each is known by its number."""

    def __init__(self, how: Scores, block: int, queries: Queries, keys: Keys, others: Others, places: Places):
        self.how, self.others, self.places, self.queries = how, others, places, queries
        self.keys = Side(keys.key.shape[2], block, places.key_starts)
        self.key, self.value = self.keys.split(keys.key, 2), self.keys.split(keys.value, 2)
        self.key_ids = None if keys.ids is None else self.keys.split(keys.ids, 1, PADDING[1])

    def scores(self, i: jax.Array, j: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns products of queries and keys (b, k, g * q, c), capped and not; the bias is not added."""
        products = jnp.einsum(
            "bkrd,bkcd->bkrc", self.queries.blocks[i], self.key[j], preferred_element_type=jnp.float32
        )
        if self.how.softcap is None:
            return products, products
        return self.how.softcap * jnp.tanh(products / self.how.softcap), products

    def bias_of(self, bias: jax.Array, i: jax.Array, j: jax.Array) -> jax.Array:
        """Returns the bias of a pair of blocks, (k, g * q, c)."""
        rows, columns = self.queries.size, self.keys.size
        farthest = self.queries.first(i) + rows - 1 - self.keys.first(j)
        part = jax.lax.dynamic_slice_in_dim(bias, self.others.first_distance - farthest, rows + columns - 1, axis=2)
        return diagonals(part.reshape(-1, part.shape[2]), rows, columns).reshape(bias.shape[0], -1, columns)

    def visible(self, i: jax.Array, j: jax.Array) -> jax.Array:
        """Returns True at keys that a query sees, broadcastable to (b, k, g * q, c)."""
        first = self.queries.first(i) - self.keys.first(j)
        distance = first + jnp.arange(self.queries.size)[:, None] - jnp.arange(self.keys.size)
        seen = self.queries.is_real(i)[:, None] & self.keys.is_real(j)
        if self.how.causal:
            seen &= distance >= 0
        if self.how.window is not None:
            seen &= distance < self.how.window
        seen = seen[None]
        if self.queries.ids is not None and self.key_ids is not None:
            seen = seen & (self.queries.ids[i][:, :, None] == self.key_ids[j][:, None])
        return jnp.tile(seen, (1, self.queries.groups, 1))[:, None]

    def kept(self, i: jax.Array, j: jax.Array, shape: tuple[int, ...]) -> jax.Array | None:
        """Returns True at weights that dropout keeps; None without dropout."""
        if self.others.dropout_keys is None:
            return None

        def of_head(bits: jax.Array) -> jax.Array:
            key = jax.random.wrap_key_data(bits, impl="threefry2x32")
            key = jax.random.fold_in(jax.random.fold_in(key, self.queries.first(i)), self.keys.first(j))
            return jax.random.bernoulli(key, 1 - self.how.dropout_rate, shape[2:])

        return jax.vmap(jax.vmap(of_head))(self.others.dropout_keys)

    def dropped(self, x: jax.Array, kept: jax.Array | None) -> jax.Array:
        """Returns x without the weights that dropout removes."""
        return x if kept is None else jnp.where(kept, x / (1 - self.how.dropout_rate), 0)

    def each(self, body: Callable[..., Any], carry: Any) -> Any:
        """Runs `body(carry, i, j)` for each pair of blocks in which a query may see a key."""

        def step(carry: Any, pair: tuple[jax.Array, jax.Array]) -> tuple[Any, None]:
            i, j = pair
            if self.places.are_exact or not self.how.causal:
                return body(carry, i, j), None
            is_seen = self.keys.first(j) <= self.queries.first(i) + self.queries.size - 1
            return jax.lax.cond(is_seen, lambda: body(carry, i, j), lambda: carry), None

        # JAX moves what all layers have in common out of the loop over layers: without this dependence on queries masks
        # of all pairs, arrays as large as all scores.
        _, pairs = jax.lax.optimization_barrier((self.queries.blocks.reshape(-1)[0], self.places.pairs))
        return jax.lax.scan(step, carry, pairs)[0]
