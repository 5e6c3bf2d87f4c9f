"""Which keys the queries of a device meet, and how they reach it if devices share a sequence (context parallelism).

`Alone`: a device has all keys. `Ring`: keys and values travel from device to device (Liu et al. 2023, Ring Attention,
section 3), and with them, in the backward pass, their gradients. `Gather`: a device collects all keys and values
(Llama Team 2024, section 3.3.2).

Queries are `in_pairs` if a device has two chunks of a row of 2 n: chunk i, counted from the front, and chunk i counted
from the back. Then all devices compute as many blocks of causal attention, although later queries see more keys.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from layers.attention.block_pairs import Places, block_pairs
from layers.attention.blocks import Keys, Others, Scores, block_size

Visit = Callable[[Any, Keys, Places], Any]  # (carry, keys, places) -> carry, in a backward pass with their gradients


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What the pairs of blocks follow from."""

    queries: int  # of this device
    block: int
    causal: bool
    window: int | None

    @classmethod
    def of(cls, how: Scores, queries: int, block: int) -> "Sizes":
        return cls(queries, block, how.causal, how.window)

    def in_chunk(self, chunks: int) -> int:
        """Returns the number of blocks in each of as many chunks of the queries."""
        return -(-(self.queries // chunks) // block_size(self.block, self.queries, chunks))

    def pairs(self, keys: int, start: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Returns the pairs of blocks of all queries from position `start`, and keys from 0."""
        blocks = min(self.block, self.queries), min(self.block, keys)
        return block_pairs(self.queries, keys, blocks, causal=self.causal, window=self.window, start=start)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alone:
    """One device has all keys."""

    start: int | None = 0  # position of the first query among the keys; None if only the running program knows it

    def query_starts(self, others: Others, queries: int) -> Any:
        """Returns the positions of the first queries of this device's chunks."""
        del queries
        return others.start[None] if self.start is None else np.array([self.start])

    def forward(self, visit: Visit, carry: Any, keys: Keys, sizes: Sizes, others: Others) -> Any:
        """Returns the carry after all keys."""
        return visit(carry, keys, self.places(keys, sizes))

    def backward(self, visit: Visit, carry: Any, keys: Keys, sizes: Sizes, others: Others) -> tuple[Any, Any]:
        """Returns the carry after all keys, and the gradients of this device's keys and values."""
        return visit(carry, keys, self.places(keys, sizes))

    def places(self, keys: Keys, sizes: Sizes) -> Places:
        """Returns the places of all keys."""
        return Places(np.array([0]), sizes.pairs(keys.key.shape[2], self.start), self.start is not None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """What exchanges over a mesh axis have in common."""

    axis: str
    parts: int  # devices along the axis
    in_pairs: bool  # a device has chunks of a row from the front and from the back

    def query_starts(self, others: Others, queries: int) -> Any:
        """Returns the positions of the first queries of this device's chunks."""
        if not self.in_pairs:
            return others.shard[None] * queries
        return jnp.stack([others.shard, 2 * self.parts - 1 - others.shard]) * (queries // 2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ring(Split):
    """Keys, values and segments move to the next device `steps` times: without a window, to all devices."""

    def steps(self, sizes: Sizes) -> int:
        """Returns how often keys move."""
        if sizes.window is None or self.in_pairs:
            return self.parts - 1
        return min(self.parts - 1, -(-(sizes.window - 1) // sizes.queries))

    def scores(self, sizes: Sizes) -> int:
        """Returns the number of scores that each device computes for a head, masked ones in blocks included."""
        if self.in_pairs:
            (diagonal, _), (full, _) = _chunk_pairs(sizes)
            chunks, pairs = 2, 2 * len(diagonal) + (2 * self.parts - 1) * len(full)
        else:
            starts = [step * sizes.queries for step in range(self.steps(sizes) + 1)]
            chunks, pairs = 1, sum(len(sizes.pairs(sizes.queries, start)[0]) for start in starts)
        return pairs * block_size(sizes.block, sizes.queries, chunks) ** 2

    def forward(self, visit: Visit, carry: Any, keys: Keys, sizes: Sizes, others: Others) -> Any:
        """Returns the carry after all keys."""
        steps, places = self.steps(sizes), self.places(sizes, others.shard)
        following = self._moved(keys) if steps else keys
        carry = visit(carry, keys, places(0))
        if not steps:
            return carry

        def step(state: Any, number: Any) -> tuple[Any, None]:
            carry, keys = state
            following = self._moved(keys)  # while these keys are in use
            return (visit(carry, keys, places(number)), following), None

        carry, keys = self._repeated(step, (carry, following), steps - 1, sizes)
        return visit(carry, keys, places(steps))

    def backward(self, visit: Visit, carry: Any, keys: Keys, sizes: Sizes, others: Others) -> tuple[Any, Any]:
        """Returns the carry after all keys, and the gradients of this device's keys and values."""
        steps, places = self.steps(sizes), self.places(sizes, others.shard)
        following = self._moved(keys) if steps else keys
        carry, own = visit(carry, keys, places(0))
        if not steps:
            return carry, own

        def step(state: Any, number: Any) -> tuple[Any, None]:
            carry, keys, gradients = state
            following = self._moved(keys)
            carry, more = visit(carry, keys, places(number))
            return (carry, following, self._moved(_sum(gradients, more))), None

        start = (carry, following, jax.tree.map(jnp.zeros_like, own))
        carry, keys, gradients = self._repeated(step, start, steps - 1, sizes)
        carry, more = visit(carry, keys, places(steps))
        back = self._moved(_sum(gradients, more), -steps)
        return carry, _sum(own, back)

    def _repeated(self, step: Callable[..., Any], state: Any, times: int, sizes: Sizes) -> Any:
        """Runs step 1, 2, ...; in one loop if all of them have as many pairs of blocks."""
        if times and (self.in_pairs or sizes.window is None):
            return jax.lax.scan(step, state, jnp.arange(1, times + 1))[0]
        for number in range(1, times + 1):
            state, _ = step(state, number)
        return state

    def _moved(self, keys: Keys, by: int = 1) -> Keys:
        to = [(device + by) % self.parts for device in range(self.parts)]
        return jax.tree.map(lambda x: jax.lax.ppermute(x, self.axis, list(enumerate(to))), keys)

    def places(self, sizes: Sizes, shard: jax.Array) -> Callable[[Any], Places]:
        """Returns the places of keys by the number of devices that they passed."""
        length, chunk = sizes.queries, sizes.queries // 2

        def consecutive(number: Any) -> Places:
            # Without a window, all blocks of earlier devices are seen.
            start = number * length if isinstance(number, int) else length
            return Places((shard - number)[None] % self.parts * length, sizes.pairs(length, start))

        def in_pairs(number: Any) -> Places:
            other = (shard - number) % self.parts
            key_starts = jnp.stack([other, 2 * self.parts - 1 - other]) * chunk
            diagonal, full = _chunk_pairs(sizes)
            blocks = sizes.in_chunk(2)
            if isinstance(number, int) and number == 0:
                own = _joined(diagonal, _at(full, blocks, 0), _at(diagonal, blocks, blocks))
                return Places(key_starts, own)
            # Front queries see the front keys of a lower device, back queries the back keys of a higher one.
            side = jnp.where(other < shard, 0, blocks)
            return Places(key_starts, _joined(_at(full, blocks, 0), _at(full, side, side)))

        return in_pairs if self.in_pairs else consecutive


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gather(Split):
    """All devices receive all keys, values and segments; the backward pass gathers them again."""

    def forward(self, visit: Visit, carry: Any, keys: Keys, sizes: Sizes, others: Others) -> Any:
        """Returns the carry after all keys."""
        return visit(carry, self._gathered(keys), self.places(sizes, others.shard))

    def backward(self, visit: Visit, carry: Any, keys: Keys, sizes: Sizes, others: Others) -> tuple[Any, Any]:
        """Returns the carry after all keys, and the gradients of this device's keys and values."""
        carry, gradients = visit(carry, self._gathered(keys), self.places(sizes, others.shard))
        scatter = lambda x, dim: jax.lax.psum_scatter(x, self.axis, scatter_dimension=dim, tiled=True)
        return carry, gradients.each(scatter)

    def _gathered(self, keys: Keys) -> Keys:
        return keys.each(lambda x, dim: jax.lax.all_gather(x, self.axis, axis=dim, tiled=True))

    def places(self, sizes: Sizes, shard: jax.Array) -> Places:
        """Returns the places of all keys."""
        length, parts = sizes.queries, self.parts
        if not self.in_pairs:
            blocks = sizes.in_chunk(1)
            pairs = np.divmod(np.arange(blocks * blocks * parts, dtype=np.int32), np.int32(blocks * parts))
            return Places(np.arange(parts) * length, pairs, are_exact=False)
        chunk = length // 2
        diagonal, full = _chunk_pairs(sizes)
        blocks = sizes.in_chunk(2)
        # The front chunk sees `shard` complete chunks before it, the back chunk the others of 2 n - 1.
        number = jnp.arange(2 * parts - 1)
        is_front = number < shard
        queries, keys = jnp.where(is_front, 0, blocks), jnp.where(is_front, number, number - shard) * blocks
        complete = (queries[:, None] + full[0]).reshape(-1), (keys[:, None] + full[1]).reshape(-1)
        own = _at(diagonal, 0, shard * blocks), _at(diagonal, blocks, (2 * parts - 1 - shard) * blocks)
        return Places(np.arange(2 * parts) * chunk, _joined(complete, *own))


Exchange = Alone | Ring | Gather


def _chunk_pairs(sizes: Sizes) -> tuple[Any, Any]:
    """Returns the pairs of blocks of a chunk with itself, and of a chunk with one before it."""
    chunk = sizes.queries // 2
    half = dataclasses.replace(sizes, queries=chunk, window=None)
    return half.pairs(chunk, 0), half.pairs(chunk, chunk)


def _at(pairs: Any, queries: Any, keys: Any) -> Any:
    """Returns pairs of blocks that start at these numbers."""
    return pairs[0] + queries, pairs[1] + keys


def _joined(*pairs: Any) -> Any:
    return tuple(jnp.concatenate([jnp.asarray(each[side]) for each in pairs]) for side in (0, 1))


def _sum(some: Keys, more: Keys) -> Keys:
    return jax.tree.map(jnp.add, some, more)
