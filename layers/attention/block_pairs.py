"""Pairs of a block of queries and a block of keys in which some query may see some key."""

from typing import Any, NamedTuple

import numpy as np

Pairs = tuple[Any, Any]  # numbers of the blocks of queries and of keys, int32 (p,) each


class Places(NamedTuple):
    """Positions of keys that are cut into equal chunks of consecutive positions, and pairs of blocks to compute."""

    key_starts: Any  # position of the first key of each chunk
    pairs: Pairs  # blocks are numbered through all chunks
    are_exact: bool = True  # in each pair some query may see some key


def block_pairs(
    queries: int, keys: int, blocks: tuple[int, int], *, causal: bool, window: int | None, start: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers of the blocks of queries and of keys, int32 (p,) each, in the order of the queries.

    Args:
      queries: number of queries.
      keys: number of keys, at positions 0, 1, ...
      blocks: number of queries and of keys in a block; the last block may have fewer.
      causal: a query sees keys at its position and before.
      window: number of those that it sees; None for all.
      start: position of the first query; None if only the running program knows it: then all pairs are returned.
    """
    counts = -(-queries // blocks[0]), -(-keys // blocks[1])
    rows, columns = np.divmod(np.arange(counts[0] * counts[1], dtype=np.int32), np.int32(counts[1]))
    if start is None or not causal:
        return rows, columns
    first, last = start + rows * blocks[0], start + np.minimum((rows + 1) * blocks[0], queries) - 1
    nearest, farthest = columns * blocks[1], np.minimum((columns + 1) * blocks[1], keys) - 1
    seen = nearest <= last
    if window is not None:
        seen &= farthest > first - window
    return rows[seen], columns[seen]
