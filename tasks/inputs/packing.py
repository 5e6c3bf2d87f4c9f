"""Packing of documents into rows, so that few are cut and little is padding."""

import numpy as np


def best_fit(lengths: np.ndarray, capacity: int, most: int | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Packs documents into rows, best fit decreasing (Ding et al. 2024, Fewer Truncations Improve Language Modeling).

    A document longer than a row fills complete rows, and its remainder is packed like a short document. Pieces are
    placed in descending order of length, each into the fullest row that has room for it.

    Args:
      lengths: int (documents,), tokens of each document.
      capacity: tokens of a row.
      most: number of pieces at which a row is full; None for no limit.

    Returns:
      Three int64 arrays (pieces,), ordered by row: the row, the document, and the position of the piece's first token
      in its document. Rows are numbered in the order of their first piece.
    """
    lengths = np.asarray(lengths, np.int64)
    counts = -(-lengths // capacity)
    document = np.repeat(np.arange(len(lengths)), counts)
    first = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    start = first * capacity
    length = np.minimum(lengths[document] - start, capacity)
    order = np.argsort(-length, kind="stable")
    row = np.empty(len(document), np.int64)
    row[order] = _rows(length[order].tolist(), capacity, most)
    by_row = np.argsort(row, kind="stable")
    return row[by_row], document[by_row], start[by_row]


def _rows(lengths: list[int], capacity: int, most: int | None) -> list[int]:
    """Returns the row of each piece; `lengths` must be in descending order."""
    # Bit sets over numbers of free positions find the fullest row with room in one operation on an integer, not a
    # search: bit r of `free_sizes` is set if a row has r free positions, bit r of `sufficient` if one has length + r.
    rows_by_free: list[list[int]] = [[] for _ in range(capacity + 1)]
    free_sizes = 0
    rows, pieces = [], []  # the number of pieces in each row
    for length in lengths:
        sufficient = free_sizes >> length
        if sufficient:
            free = length + (sufficient & -sufficient).bit_length() - 1  # the lowest bit: the least sufficient room
            row = rows_by_free[free].pop()
            if not rows_by_free[free]:
                free_sizes ^= 1 << free
        else:
            free, row = capacity, len(pieces)
            pieces.append(0)
        rows.append(row)
        pieces[row] += 1
        if free > length and pieces[row] != most:
            rows_by_free[free - length].append(row)
            free_sizes |= 1 << (free - length)
    return rows
