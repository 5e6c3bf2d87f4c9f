"""The input of a run in phases: each phase has an input of its own, with rows of another size."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from layers.errors import UsageError, errors_of
from tasks.batch import Batch
from tasks.inputs.indexed import ByteCounts, IndexedInput, Shard


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhasedInput(IndexedInput):
    """The first `steps[0]` batches of `phases[0]`, then the first `steps[1]` batches of `phases[1]`, and so on.

    Batches are those of the complete run in every phase. `phase` selects the one that `batch_size`, `seq_len`, `shapes`
    and `byte_ratio` describe.
    """

    phases: tuple[IndexedInput, ...]
    steps: tuple[int, ...]  # number of batches of each phase
    phase: int = 0
    batch_size: int = dataclasses.field(init=False, default=1)  # of the phase
    seq_len: int = dataclasses.field(init=False, default=1)  # of the phase

    def __post_init__(self):
        object.__setattr__(self, "batch_size", self.own.batch_size)
        object.__setattr__(self, "seq_len", self.own.seq_len)
        super().__post_init__()
        if len(self.phases) != len(self.steps) or min(self.steps) < 1:
            raise ValueError(f"steps must be above 0, one for each of {len(self.phases)} phases (got {self.steps})")
        for number, (source, steps) in enumerate(zip(self.phases, self.steps, strict=True)):
            if source.short_batches > steps:
                raise ValueError(
                    f"phase {number} must have at least {source.short_batches} updates, those of its short rows (got "
                    f"{steps})"
                )

    @property
    def own(self) -> IndexedInput:
        """The input of `phase`."""
        return self.phases[self.phase]

    @functools.cached_property
    def _bounds(self) -> np.ndarray:
        return np.cumsum([0, *self.steps])

    @property
    def borders(self) -> tuple[int, ...]:
        return tuple(self._bounds[1:-1].tolist())

    def place(self, index: int) -> tuple[int, int]:
        """Returns the phase of batch `index`, and the batch's number in it; the last phase after the last batch."""
        phase = min(int(np.searchsorted(self._bounds, index, side="right")) - 1, len(self.phases) - 1)
        return phase, index - int(self._bounds[phase])

    def batch(self, index: int, shard: Shard = Shard()) -> Batch:
        phase, number = self.place(index)
        return self.phases[phase].batch(number, shard)

    def num_batches(self) -> int | None:
        return int(self._bounds[-1])

    def require_data(self) -> None:
        for number, (source, steps) in enumerate(zip(self.phases, self.steps, strict=True)):
            with errors_of(f"PHASES[{number}]"):
                source.require_data()
            end = source.num_batches()
            if end is not None and end < steps:
                raise UsageError(f"PHASES[{number}] has data for {end} updates only (got {steps} steps).")

    @property
    def short_batches(self) -> int:
        return self.own.short_batches

    def shapes(self) -> list[tuple[int, int]]:
        return self.own.shapes()

    @property
    def fields(self) -> frozenset[str]:
        return self.own.fields

    @property
    def fingerprint(self) -> str | None:
        return self.fingerprint_of(int(self._bounds[-1]))

    def fingerprint_of(self, batches: int) -> str | None:
        begun = self.phases[: self.place(max(batches, 1) - 1)[0] + 1]
        known = dict.fromkeys(source.fingerprint for source in begun)
        return "; ".join(map(str, known)) if any(known) else None

    @property
    def byte_counts(self) -> ByteCounts | None:
        return self.own.byte_counts

    def texts(self) -> Iterator[str]:
        """Yields the text of the first phase."""
        return self.phases[0].texts()

    def describe(self) -> str:
        bounds = [f"{first + 1} to {last}" for first, last in zip(self._bounds, self._bounds[1:], strict=False)]
        each = (f"{source.describe()} (updates {span})" for source, span in zip(self.phases, bounds, strict=True))
        return "; then ".join(each)

    def snapshot(self, shard: Shard, next_batch: int) -> dict[str, Any]:
        phase, number = self.place(max(next_batch - 1, 0))
        return self.phases[phase].snapshot(shard, number + 1)

    def resume(self, state: dict[str, Any], shard: Shard) -> None:
        phase, number = self.place(max(int(state["next_batch"]) - 1, 0))
        self.phases[phase].resume({**state, "next_batch": number + 1}, shard)
