"""Rows of a registered seqio Task or Mixture."""

import dataclasses
import functools
import hashlib
from typing import Any

import numpy as np

from layers.errors import UsageError
from tasks.batch import Batch
from tasks.inputs.indexed import IndexedInput, Shard
from tasks.inputs.seqio.pipeline import (
    Objective,
    batch_of,
    check_cached,
    check_features,
    converter,
    pick_split,
    rows_of,
)
from tasks.inputs.seqio.registered import find_task
from tasks.inputs.seqio.registration import unprepared
from tasks.inputs.seqio.tf_cursor import TfCursor


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeqioInput(IndexedInput):
    """Batches of a seqio task, by seqio's feature converter for the objective.

    "lm" packs "targets" into rows, each segment predicted from seqio's start token 0; "prefix_lm" packs "inputs" and
    "targets" joined, the loss on targets; "encoder" packs both side by side, the loss where `mask_id` stands in
    "inputs", or at all targets where that is None.

    With `num_epochs` None it never ends: each host reads its own files, or every n-th example, so what a batch holds
    depends on the number of hosts. Otherwise it ends, the last batch padded with rows of weight 0, and every host reads
    everything and keeps its rows: all have the same batches on any number of hosts. Batches are read in order: any
    other is reached by reading through, from the last snapshot where a run goes on from a checkpoint.
    """

    task: str  # name of a registered Task or Mixture
    split: str = "train"
    split_instead: str | None = None  # what to read where the task has no such split
    objective: Objective = "lm"
    pack: bool = True  # several examples a row
    inputs_len: int | None = None  # positions of "inputs" in a row of prefix_lm; None is half of it
    loss_on_targets_only: bool = True  # of prefix_lm
    mask_id: int | None = None  # of encoder
    shuffle: bool = True
    seed: int = 0
    num_epochs: int | None = None  # None is without end
    max_rows: int | None = None  # of what ends: the first so many rows; None is all
    use_cached: bool = False  # read what seqio_cache_tasks wrote
    cache_dir: str | None = None  # where; None is the folders that a module added
    snapshot_every: int = 100  # batches between snapshots of the reader

    def __post_init__(self):
        super().__post_init__()
        for name in ("num_epochs", "max_rows", "snapshot_every"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} must be at least 1")
        if self.inputs_len is not None and not 1 <= self.inputs_len < self.seq_len:
            raise ValueError(f"inputs_len = {self.inputs_len} must lie between 1 and seq_len = {self.seq_len}")

    @functools.cached_property
    def _task(self) -> Any:
        task = find_task(self.task)
        check_features(task, self.objective)
        if self.use_cached:
            check_cached(task, self.cache_dir)
        return task

    @functools.cached_property
    def _split(self) -> str:
        return pick_split(self._task, self.split, self.split_instead)

    @functools.cached_property
    def _cursors(self) -> dict[Shard, TfCursor]:
        return {}

    @functools.cached_property
    def _lengths(self) -> dict[str, int]:
        if self.objective == "lm":
            return {"targets": self.seq_len}
        if self.objective == "encoder":
            return dict.fromkeys(("inputs", "targets"), self.seq_len)
        prefix = self.seq_len // 2 if self.inputs_len is None else self.inputs_len
        return {"inputs": prefix, "targets": self.seq_len - prefix}

    def _rows(self, shard: Shard = Shard(), **changes: Any) -> Any:
        kinds = {"mask_id": self.mask_id, "loss_on_targets_only": self.loss_on_targets_only}
        chosen = {"shuffle": self.shuffle, "seed": self.seed, "num_epochs": self.num_epochs} | changes
        rows = rows_of(
            self._task,
            self._lengths,
            converter(self.objective, self.pack, **kinds),
            split=self._split,
            use_cached=self.use_cached,
            shard=shard,
            **chosen,
        )
        ends = chosen["num_epochs"] is not None and self.max_rows is not None
        return rows.take(self.max_rows) if ends else rows

    def _cursor(self, shard: Shard) -> TfCursor:
        if shard not in self._cursors:
            size = len(shard.rows(self.batch_size))
            endless = self.num_epochs is None
            make = lambda: self._rows(shard).batch(size, drop_remainder=endless).prefetch(2)
            self._cursors[shard] = TfCursor(make, self.snapshot_every)
        return self._cursors[shard]

    def batch(self, index: int, shard: Shard = Shard()) -> Batch:
        """The shard's rows of batch `index`.

        Raises:
          UsageError: the task cannot be read, or this shard of it is empty.
        """
        reads = shard if self.num_epochs is None else Shard()
        element = self._cursor(reads).element(index)
        if self.num_epochs is None:
            if element is None:
                whose = f"Part {shard.index + 1} of {shard.count} of " if shard.count > 1 else ""
                raise UsageError(f"{whose}{self.describe()} holds no example: read it on fewer hosts.")
            return batch_of(element, self.objective, self.mask_id)
        if element is None:
            raise IndexError(f"batch {index} is behind the end")
        rows, size = shard.rows(self.batch_size), self.batch_size
        whole = {name: np.pad(array, ((0, size - len(array)), (0, 0))) for name, array in element.items()}
        part = {name: array[rows.start : rows.stop] for name, array in whole.items()}
        return batch_of(part, self.objective, self.mask_id)

    def num_batches(self) -> int | None:
        """Batches until the end, counted once by reading; None where there is none."""
        return None if self.num_epochs is None else -(-self._count // self.batch_size)

    @functools.cached_property
    def _count(self) -> int:
        return self._counted(self._rows())

    def _counted(self, rows: Any) -> int:
        with unprepared(self.task):
            return int(rows.reduce(np.int64(0), lambda count, _: count + 1).numpy())

    def require_data(self) -> None:
        """Reads one batch's rows, or counts those until the end.

        Raises:
          UsageError: the task, its split, its cache or its data is not there, or holds less than one batch.
        """
        if self.num_epochs is not None:
            found, need = self._count, 1
        else:
            pass_once = self._rows(shuffle=False, num_epochs=1).take(self.batch_size)
            found, need = self._counted(pass_once), self.batch_size
        if found < need:
            raise UsageError(
                f"{self.describe()} makes {found} rows of {self.seq_len} positions, fewer than the {need} of a batch."
            )

    def describe(self) -> str:
        cached = ", cached" if self.use_cached else ""
        return f"seqio task '{self.task}', split '{self._split}'{cached}"

    def _fingerprint(self, shard: Shard) -> str:
        fields = repr(sorted(dataclasses.asdict(self).items())) + repr(shard)
        return hashlib.sha256(fields.encode()).hexdigest()[:16]

    def snapshot(self, shard: Shard) -> dict[str, Any]:
        cursor = self._cursors.get(shard if self.num_epochs is None else Shard())
        taken = None if cursor is None else cursor.snapshot()
        return {"snapshot": None if taken is None else taken | {"of": self._fingerprint(shard)}}

    def resume(self, state: dict[str, Any], shard: Shard) -> None:
        snapshot = state.get("snapshot")
        if snapshot is None:
            return
        if snapshot["of"] != self._fingerprint(shard):
            print("The input's state was saved under other settings: it is read through from the start.", flush=True)
        elif not self._cursor(shard if self.num_epochs is None else Shard()).restore(snapshot):
            print("TensorFlow cannot read the input's state: it is read through from the start.", flush=True)
