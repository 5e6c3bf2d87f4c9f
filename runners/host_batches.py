"""Batches on the mesh: each host reads the shards of its devices, one batch ahead."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from tasks.batch import Batch
from tasks.inputs.indexed import IndexedInput, InputIterator, Shard


class HostBatches:
    """Global batches with a sharding, made from what this host reads."""

    def __init__(self, sharding: NamedSharding):
        self.sharding = sharding

    def shards(self, source: IndexedInput) -> tuple[Shard, ...]:
        """Returns the shards of each batch on this host's devices; hosts that hold copies of a shard all read it."""
        return host_shards(self.sharding, (source.batch_size, source.seq_len), jax.process_index())

    def put(self, batch: Batch, shards: Sequence[Shard] = (Shard(),)) -> Batch:
        """Returns global arrays on the mesh from a host's concatenated shards of a batch; by default the full batch."""
        return jax.tree.map(lambda part: self._placed(part, shards), batch)

    def _placed(self, part: np.ndarray, shards: Sequence[Shard]) -> jax.Array:
        rows = part.shape[0] // len(shards)  # of one shard
        begin = {shard.index: number * rows for number, shard in enumerate(shards)}
        shape = (rows * shards[0].count, part.shape[1])

        def of_device(index: Any) -> np.ndarray:
            low, high, _ = index[0].indices(shape[0])
            start = begin[low // rows] + low % rows
            return part[start : start + high - low, index[1]]

        return jax.make_array_from_callback(shape, self.sharding, of_device)

    def iterate(
        self, source: IndexedInput, start: dict[str, Any] | None = None
    ) -> Iterator[tuple[Batch, dict[str, Any]]]:
        """Yields batches on the mesh, each with the iterator's state after it; prefetches one batch in a thread."""
        shards = self.shards(source)
        iterator = source.iterator(*shards)
        if start is not None:
            iterator.restore(start)
        with ThreadPoolExecutor(1) as worker:
            following = worker.submit(self._next, iterator, shards)
            while (current := following.result()) is not None:
                following = worker.submit(self._next, iterator, shards)
                yield current

    def _next(self, iterator: InputIterator, shards: Sequence[Shard]) -> tuple[Batch, dict[str, Any]] | None:
        batch = next(iterator, None)
        return None if batch is None else (self.put(batch, shards), iterator.state())


def host_shards(sharding: NamedSharding, shape: tuple[int, int], process: int) -> tuple[Shard, ...]:
    """Returns the shards of a batch (rows, positions) on the devices of a process, in order; one if possible.

    On a torus the rows of a host's chips are seldom contiguous.
    """
    places = sharding.devices_indices_map(shape)
    held = {index[0].indices(shape[0])[:2] for device, index in places.items() if device.process_index == process}
    size = max(high - low for low, high in held)  # the same for all devices
    numbers, count = sorted(low // size for low, _ in held), shape[0] // size
    several, first = len(numbers), numbers[0]
    if numbers == list(range(first, first + several)) and first % several == count % several == 0:
        return (Shard(first // several, count // several),)
    return tuple(Shard(number, count) for number in numbers)
