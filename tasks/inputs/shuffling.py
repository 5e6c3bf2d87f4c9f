"""Random access shuffling: the row at any place of an epoch is computed without the others."""

import functools

import numpy as np

from tasks.inputs.indexed import generator

LISTED = 1 << 20  # most rows whose order is kept as an array
ROUNDS = 6
WORD = (1 << 64) - 1


def shuffled(place: int, rows: int, *entropy: int) -> int:
    """Returns the row at `place` in the permutation of 0 ... rows - 1 determined by `entropy`.

    Above `LISTED` rows, a Feistel network over the next even power of two is applied repeatedly until the result is
    below `rows` (Black and Rogaway 2002, Ciphers with Arbitrary Finite Domains, cycle walking), which needs no memory.
    """
    if rows <= LISTED:
        return int(_listed(rows, *entropy)[place])
    return walk(place, rows, _keys(*entropy))


def walk(place: int, rows: int, keys: tuple[int, ...]) -> int:
    """Returns `place` permuted by the network with these keys, one for each round."""
    half = max(1, ((rows - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = place >> half, place & mask
        for key in keys:
            left, right = right, left ^ (_mixed(right + key) & mask)
        place = left << half | right
        if place < rows:
            return place


def _mixed(x: int) -> int:
    """Returns the finalizer of SplitMix64 (Steele et al. 2014)."""
    x &= WORD
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & WORD
    return x ^ (x >> 31)


@functools.lru_cache(maxsize=32)
def _listed(rows: int, *entropy: int) -> np.ndarray:
    return generator(*entropy).permutation(rows)


@functools.lru_cache(maxsize=32)
def _keys(*entropy: int) -> tuple[int, ...]:
    return tuple(int(key) for key in generator(*entropy).integers(WORD, size=ROUNDS, dtype=np.uint64))
