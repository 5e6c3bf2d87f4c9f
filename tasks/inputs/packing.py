"""Packing of documents into rows, so that few are cut and little is padding."""

import numpy as np


def best_fit(lengths: np.ndarray, capacity: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Packs documents into rows, best fit decreasing (Ding et al. 2024, Fewer Truncations Improve Language Modeling).

    A document longer than a row fills complete rows, and its remainder is packed like a short document. Pieces are
    placed in descending order of length, each into the fullest row that has room for it.

    Args:
      lengths: int (documents,), tokens of each document.
      capacity: tokens of a row.

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
    row[order] = _rows(length[order].tolist(), capacity)
    by_row = np.argsort(row, kind="stable")
    return row[by_row], document[by_row], start[by_row]


def _rows(lengths: list[int], capacity: int) -> list[int]:
    """Returns the row of each piece; `lengths` must be in descending order."""
    room: list[list[int]] = [[] for _ in range(capacity + 1)]  # rows by their free positions
    some = 0  # bit r: some row has r free positions
    rows, begun = [], 0
    for length in lengths:
        enough = some >> length
        if enough:
            left = length + (enough & -enough).bit_length() - 1  # the smallest sufficient room
            row = room[left].pop()
            if not room[left]:
                some ^= 1 << left
        else:
            left, row = capacity, begun
            begun += 1
        rows.append(row)
        if left > length:
            room[left - length].append(row)
            some |= 1 << (left - length)
    return rows
