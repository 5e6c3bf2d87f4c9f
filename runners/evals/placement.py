"""Placement of evaluation batches on the mesh of a session, and their sizes."""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from layers.specs import P, axes_of
from runners.evals.packing import PackedBatch, Packer, divisor_up_to
from runners.host_batches import HostBatches
from runners.session import Session

TOKENS_PER_SHARD = 16_384  # positions of a batch on the devices that share its rows, unless training uses fewer
REPORT_SECONDS = 20.0
LOGITS_PER_SHARD = 2**26  # logits in memory at once there: 256 MiB in float32


class Placement:
    """How batches of evaluations are cut, placed and read.

    Args:
      session: the session.
      batch_tokens: positions of a batch; None is those of a micro-batch of training, at most TOKENS_PER_SHARD for each
        group of devices that has rows of its own.
    """

    def __init__(self, session: Session, batch_tokens: int | None = None):
        spec = (*session.host_batches.sharding.spec, None, None)[:2]
        devices = lambda entry: math.prod(session.mesh.shape[axis] for axis in axes_of(entry))
        self._row_shards, length_shards = devices(spec[0]), devices(spec[1])
        self._session = session
        self._rows = HostBatches(NamedSharding(session.mesh, P(spec[0], None)))
        self.longest = longest_row(session)
        source, parts = session.train.input, session.task.gradient_accumulation
        trained = source.batch_size * source.seq_len // parts
        tokens = batch_tokens or min(trained, TOKENS_PER_SHARD * self._row_shards)
        sizes = {"tokens": tokens, "longest": self.longest, "row_multiple": self._row_shards}
        self.packer = Packer(**sizes, length_multiple=length_shards)

    def prompt_packer(self, new_tokens: int) -> Packer:
        """Returns the packer of prompts that get up to `new_tokens` more tokens; a row is not split over devices."""
        longest = max(1, self.longest - new_tokens)
        return dataclasses.replace(self.packer, longest=longest, length_multiple=1, new_tokens=new_tokens)

    def put(self, arrays: Any) -> Any:
        """Returns global arrays (rows, positions) on the mesh, split like the rows of training batches."""
        return self._session.host_batches.put(arrays)

    def put_rows(self, arrays: Any) -> Any:
        """Returns global arrays (rows, positions) whose rows, but not positions, are split over the mesh."""
        return self._rows.put(arrays)

    @property
    def copied(self) -> NamedSharding:
        """The sharding of results: a copy on every device, which every process can read."""
        return NamedSharding(self._session.mesh, P())

    def logits_chunk(self, batch: PackedBatch) -> int:
        """Returns the positions per row whose logits are computed at once, a divisor of the batch's positions."""
        rows = -(-batch.rows // self._row_shards)
        most = LOGITS_PER_SHARD // (rows * self._session.task.vocabulary.size)
        return divisor_up_to(batch.length, max(1, most))


def longest_row(session: Session) -> int:
    """Returns the positions per row that the model is made for: those that it states, else those of training rows."""
    return session.task.trained_length() or session.task.carry_length or session.train.input.seq_len


class Reminder:
    """Reports how much is done of a long computation, once in REPORT_SECONDS.

    Args:
      report: prints a line.
      total: number of sequences.
      done: what has happened to those that are done.
    """

    def __init__(self, report: Callable[[str], None], total: int, done: str):
        self._report, self._total, self._done = report, total, done
        self._count, self._reported = 0, time.monotonic()

    def add(self, count: int) -> None:
        """Adds sequences that are done."""
        self._count += count
        if time.monotonic() - self._reported > REPORT_SECONDS and self._count < self._total:
            self._reported = time.monotonic()
            self._report(f"{self._done} {self._count:,} of {self._total:,} sequences")


def one_ahead(results: Iterator[tuple[Any, Any]], settle: Any) -> Iterator[tuple[Any, Any]]:
    """Yields pairs of a label and arrays as numpy arrays, and queues the arrays of the next pair before it waits."""
    waiting: list[tuple[Any, Any]] = []
    for label, arrays in results:
        waiting.append((label, settle(arrays)))
        if len(waiting) > 1:
            done, values = waiting.pop(0)
            yield done, jax.tree.map(np.asarray, values)
    for done, values in waiting:
        yield done, jax.tree.map(np.asarray, values)
