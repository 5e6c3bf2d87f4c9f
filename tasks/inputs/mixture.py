"""Rows of several inputs: mixed by weights for training, concatenated for evaluation."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from layers.errors import UsageError
from tasks.batch import Batch, fields_of_all, with_fields
from tasks.inputs.indexed import ByteCounts, IndexedInput, RowInput, Shard, generator
from tasks.inputs.rows import TokensInput

PERIOD = 1000  # rows in which every source has exactly its share


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixtureInput(RowInput):
    """An infinite mixture: each source has its share of every thousand rows, in an order determined by `seed`.

    Shares are rounded to thousandths (largest remainders first). A source is read in its own order, and starts its next
    epoch at its end.
    """

    sources: tuple[RowInput, ...]
    weights: tuple[float, ...]  # relative numbers of rows, in any unit
    seed: int = 0
    batch_size: int = dataclasses.field(init=False, default=1)  # the sources'
    seq_len: int = dataclasses.field(init=False, default=1)  # the sources'

    def __post_init__(self):
        _take_sizes(self, self.sources)
        super().__post_init__()
        if len(self.weights) != len(self.sources) or min(self.weights) <= 0:
            raise UsageError(
                f"Mixture weights must be numbers above 0, one for each source (got {self.weights} for "
                f"{len(self.sources)} sources)."
            )
        if (shares := self.shares).min() < 1:
            least = self.weights[int(shares.argmin())]
            raise UsageError(
                f"The mixture weight {least} is less than one row in {PERIOD} (got {self.weights}). "
                f"Raise it or remove its source."
            )

    @property
    def num_rows(self) -> int | None:
        return None

    @functools.cached_property
    def shares(self) -> np.ndarray:
        """Rows of each source in every thousand: int (sources,)."""
        return _shares(self.weights)

    def place(self, number: int) -> tuple[int, int]:
        """Returns the index of the source of row `number`, and the row's number in that source."""
        period, slot = divmod(number, PERIOD)
        order = _order(self.seed, period, tuple(self.shares.tolist()))
        source = int(order[slot])
        return source, period * int(self.shares[source]) + int(np.count_nonzero(order[:slot] == source))

    def row(self, number: int) -> Batch:
        source, row = self.place(number)
        return with_fields(self.sources[source].row(row), self.fields)

    @functools.cached_property
    def fields(self) -> frozenset[str]:
        return fields_of_all(source.fields for source in self.sources)

    @property
    def byte_counts(self) -> ByteCounts | None:
        """Bytes of a million tokens in these shares; each source has its own bytes per token."""
        scales = [share * 1000 / _tokens(source) for share, source in zip(self.shares, self.sources, strict=True)]
        counts = [source.byte_counts for source in self.sources]
        scaled = [c and ByteCounts(c.text * s, c.counted * s) for c, s in zip(counts, scales, strict=True)]
        return _sum(scaled)

    def describe(self) -> str:
        parts = zip(self.shares / PERIOD, self.sources, strict=True)
        return "; ".join(f"{share:.1%} {source.describe()}" for share, source in parts)

    def require_data(self) -> None:
        for source in self.sources:
            source.require_data()

    def texts(self) -> Iterator[str]:
        """Yields documents of all sources alternately, by their weights in bytes, until the first source ends."""
        open_texts = [source.texts() for source in self.sources]
        sizes = np.zeros(len(self.sources))
        while True:
            least = int(np.argmin(sizes / self.weights))
            if (text := next(open_texts[least], None)) is None:
                return
            sizes[least] += max(1, len(text.encode()))
            yield text

    @property
    def fingerprint(self) -> str | None:
        return _joined(self.sources)


def rows_of_each(weights: Sequence[float], seed: int, rows: int) -> list[int]:
    """Returns how many of the first `rows` rows of a MixtureInput are of each source."""
    shares = _shares(weights)
    periods, rest = divmod(rows, PERIOD)
    begun = _order(seed, periods, tuple(shares.tolist()))[:rest]
    return (periods * shares + np.bincount(begun, minlength=len(shares))).tolist()


def _shares(weights: Sequence[float]) -> np.ndarray:
    exact = np.asarray(weights) / sum(weights) * PERIOD
    shares = np.floor(exact).astype(int)
    for index in np.argsort(shares - exact, kind="stable")[: PERIOD - shares.sum()]:
        shares[index] += 1
    return shares


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChainedInput(IndexedInput):
    """The batches of several finite inputs, concatenated."""

    sources: tuple[IndexedInput, ...]
    batch_size: int = dataclasses.field(init=False, default=1)  # the sources'
    seq_len: int = dataclasses.field(init=False, default=1)  # the sources'

    def __post_init__(self):
        _take_sizes(self, self.sources)
        super().__post_init__()

    def num_batches(self) -> int | None:
        return int(self._bounds[-1])

    @functools.cached_property
    def _bounds(self) -> np.ndarray:
        counts = [source.num_batches() for source in self.sources]
        return np.cumsum([0, *(0 if count is None else count for count in counts)])

    def batch(self, index: int, shard: Shard = Shard()) -> Batch:
        source = int(np.searchsorted(self._bounds, index, side="right")) - 1
        return with_fields(self.sources[source].batch(index - int(self._bounds[source]), shard), self.fields)

    @functools.cached_property
    def fields(self) -> frozenset[str]:
        return fields_of_all(source.fields for source in self.sources)

    def texts(self) -> Iterator[str]:
        return itertools.chain.from_iterable(source.texts() for source in self.sources)

    @property
    def fingerprint(self) -> str | None:
        return _joined(self.sources)

    @property
    def byte_counts(self) -> ByteCounts | None:
        return _sum([source.byte_counts for source in self.sources])

    def describe(self) -> str:
        return "; then ".join(source.describe() for source in self.sources)

    def require_data(self) -> None:
        for source in self.sources:
            source.require_data()


def _take_sizes(mixed: MixtureInput | ChainedInput, sources: tuple[IndexedInput, ...]) -> None:
    if not sources:
        raise UsageError("A mixture needs a source.")
    sizes = {(source.batch_size, source.seq_len) for source in sources}
    if len(sizes) > 1:
        raise UsageError(
            f"Sources of a mixture must have rows of one size (got batch_size and seq_len of {sorted(sizes)})."
        )
    for name in ("batch_size", "seq_len"):
        object.__setattr__(mixed, name, getattr(sources[0], name))


def _joined(sources: Sequence[IndexedInput]) -> str | None:
    known = [source.fingerprint for source in sources]
    return "; ".join(map(str, known)) if any(known) else None


def _sum(counts: list[ByteCounts | None]) -> ByteCounts | None:
    known = [count for count in counts if count is not None]
    return ByteCounts(*map(sum, zip(*known, strict=True))) if known else None


def _tokens(source: RowInput) -> int:
    """Returns the number of tokens in the source's split; 1 if it has no such number."""
    return len(source.tokens) if isinstance(source, TokensInput) else 1


@functools.lru_cache(maxsize=8)
def _order(seed: int, period: int, shares: tuple[int, ...]) -> np.ndarray:
    return generator(seed, period).permutation(np.repeat(np.arange(len(shares)), shares))
