"""Batches packed by length: sequences of many lengths in batches of few shapes."""

import dataclasses
from collections.abc import Collection, Sequence

SHORTEST = 16  # positions of the shortest rows; shorter sequences are padded to it
EXTRA_BATCHES = 1  # a shape is not compiled if its sequences fit into so many more batches of the next larger shape


@dataclasses.dataclass(frozen=True)
class PackedBatch:
    """The sequences of one batch, by their numbers, and the shape of its arrays."""

    numbers: tuple[int, ...]  # at most `rows`; the remaining rows are padding
    rows: int
    length: int  # positions per row


@dataclasses.dataclass(frozen=True, kw_only=True)
class Packer:
    """Sorts sequences into batches. Lengths of rows are powers of two, or `longest`.

    Raises:
      ValueError: a number is below 1.
    """

    tokens: int  # positions of a batch, padding included
    longest: int  # positions of the longest row
    row_multiple: int = 1  # divisor of the rows of each batch: the devices that share them
    length_multiple: int = 1  # divisor of the positions of each row: the devices that share a row
    new_tokens: int = 0  # positions after each row that count towards `tokens`

    def __post_init__(self):
        for name in ("tokens", "longest", "row_multiple", "length_multiple"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1 (got {getattr(self, name)})")

    def row_length(self, length: int) -> int:
        """Returns the positions of the row that a sequence of `length` tokens is padded to."""
        padded = min(max(SHORTEST, _power_of_two(length)), max(self.longest, length))
        return _multiple(padded, self.length_multiple)

    def batches(self, lengths: Sequence[int]) -> list[PackedBatch]:
        """Returns batches that hold every sequence once, the longest rows first, so that memory runs out at once."""
        groups: dict[int, list[int]] = {}
        for number in sorted(range(len(lengths)), key=lambda n: (lengths[n], n)):
            groups.setdefault(self.row_length(lengths[number]), []).append(number)
        for short, long in zip(sorted(groups), sorted(groups)[1:], strict=False):
            moved = groups[short] + groups[long]
            if self._count(len(moved), long) <= self._count(len(groups[long]), long) + EXTRA_BATCHES:
                groups[long] = moved
                del groups[short]
        return [batch for length in sorted(groups, reverse=True) for batch in self._cut(groups[length], length)]

    def rows(self, length: int, sequences: int) -> int:
        """Returns the rows of a batch of rows of `length` positions, if there are so many sequences in total."""
        full = max(1, self.tokens // (length + self.new_tokens))
        return _multiple(min(full, _power_of_two(sequences)), self.row_multiple)

    def _count(self, sequences: int, length: int) -> int:
        return -(-sequences // self.rows(length, sequences))

    def _cut(self, numbers: list[int], length: int) -> list[PackedBatch]:
        rows = self.rows(length, len(numbers))
        starts = range(0, len(numbers), rows)
        return [PackedBatch(tuple(numbers[start : start + rows]), rows, length) for start in starts]


def _power_of_two(number: int) -> int:
    """Returns the least power of two that is at least `number`."""
    return 1 << max(number - 1, 0).bit_length()


def _multiple(number: int, divisor: int) -> int:
    """Returns the least multiple of `divisor` that is at least `number`."""
    return -(-number // divisor) * divisor


def divisor_up_to(number: int, most: int) -> int:
    """Returns the largest divisor of `number` that is at most `most`; 1 if `most` is smaller than 1."""
    return next((divisor for divisor in range(min(number, most), 0, -1) if number % divisor == 0), 1)


def counted(batches: int, shapes: Collection[tuple[int, ...]]) -> str:
    """Returns numbers of batches and shapes in words.

    >>> counted(14, {(4, 128), (8, 64)})
    '14 batches of 2 shapes'
    """
    return f"{batches:,} batch{'' if batches == 1 else 'es'} of {len(shapes)} shape{'' if len(shapes) == 1 else 's'}"
