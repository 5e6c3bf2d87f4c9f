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
    """Batches of a seqio task, made by seqio's feature converter for the objective.

    "lm" packs "targets" into rows, each segment predicted from seqio's start token 0. "prefix_lm" packs "inputs" and
    "targets" concatenated, with the loss on targets. "encoder" packs both in parallel, with the loss at the positions
    of `mask_id` in "inputs", or at all targets if it is None.

    With `num_epochs` None the input is infinite: each host reads its own files, or every n-th example, so the content
    of a batch depends on the number of hosts. Otherwise the input is finite, the last batch is padded with rows of
    weight 0, and every host reads all rows and keeps its own: batches are the same for any number of hosts. Batches are
    read in order; access to another batch reads from the start, or from the last snapshot in a resumed run.
    """

    task: str  # name of a registered Task or Mixture
    split: str = "train"
    split_instead: str | None = None  # split to read if the task has no such split
    objective: Objective = "lm"
    pack: bool = True  # several examples per row
    inputs_len: int | None = None  # positions of "inputs" in a row of prefix_lm; None is half of it
    loss_on_targets_only: bool = True  # of prefix_lm
    mask_id: int | None = None  # of encoder
    shuffle: bool = True
    seed: int = 0
    num_epochs: int | None = None  # None is infinite
    max_rows: int | None = None  # for a finite input: number of first rows to read; None is all
    use_cached: bool = False  # read the output of seqio_cache_tasks
    cache_dir: str | None = None  # cache folder; None is the folders added with seqio.add_global_cache_dirs
    snapshot_every: int = 100  # batches between snapshots of the reader

    def __post_init__(self):
        super().__post_init__()
        for name in ("num_epochs", "max_rows", "snapshot_every"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1 (got {getattr(self, name)})")
        if self.inputs_len is not None and not 1 <= self.inputs_len < self.seq_len:
            raise ValueError(
                f"inputs_len must be at least 1 and below seq_len = {self.seq_len} (got {self.inputs_len})"
            )

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
        """Returns the shard's rows of batch `index`.

        Raises:
          UsageError: the task cannot be read, or this shard is empty.
          IndexError: `index` is after the last batch.
        """
        reads = shard if self.num_epochs is None else Shard()
        element = self._cursor(reads).element(index)
        if self.num_epochs is None:
            if element is None:
                whose = f"Part {shard.index + 1} of {shard.count} of " if shard.count > 1 else ""
                raise UsageError(f"{whose}{self.describe()} has no examples. Read it on fewer hosts.")
            return batch_of(element, self.objective, self.mask_id)
        if element is None:
            raise IndexError(f"batch {index} is after the last batch")
        rows, size = shard.rows(self.batch_size), self.batch_size
        whole = {name: np.pad(array, ((0, size - len(array)), (0, 0))) for name, array in element.items()}
        part = {name: array[rows.start : rows.stop] for name, array in whole.items()}
        return batch_of(part, self.objective, self.mask_id)

    def num_batches(self) -> int | None:
        """Returns the number of batches, counted once by reading the data; None if the input is infinite."""
        return None if self.num_epochs is None else -(-self._count // self.batch_size)

    @functools.cached_property
    def _count(self) -> int:
        return self._counted(self._rows())

    def _counted(self, rows: Any) -> int:
        with unprepared(self.task):
            return int(rows.reduce(np.int64(0), lambda count, _: count + 1).numpy())

    def require_data(self) -> None:
        """Reads the rows of one batch, or counts all rows of a finite input.

        Raises:
          UsageError: the task, its split, its cache or its data is missing, or has fewer rows than one batch.
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

    def snapshot(self, shard: Shard, next_batch: int) -> dict[str, Any]:
        del next_batch  # the cursor knows it
        cursor = self._cursors.get(shard if self.num_epochs is None else Shard())
        snapshot = None if cursor is None else cursor.snapshot()
        return {"snapshot": None if snapshot is None else snapshot | {"of": self._fingerprint(shard)}}

    def resume(self, state: dict[str, Any], shard: Shard) -> None:
        snapshot = state.get("snapshot")
        if snapshot is None:
            return
        if snapshot.get("of") != self._fingerprint(shard):
            print("The input's state was saved under other settings. Reading from the start.", flush=True)
        elif not self._cursor(shard if self.num_epochs is None else Shard()).restore(snapshot):
            print("TensorFlow cannot read the input's state. Reading from the start.", flush=True)
