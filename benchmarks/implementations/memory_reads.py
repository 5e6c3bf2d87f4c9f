"""Reads of an array in memory, a part per core: the peak rate of the machine, measured between the others' turns."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from benchmarks.implementations.work import Decoder, Gpt2Size

BYTES = 2**30  # read per turn, far more than caches hold


def decoder(size: Gpt2Size, weights: str, rows: int, prompt: int, new: int, options: set[str]) -> Decoder:
    """Returns a function that reads the array once and returns no tokens."""
    del size, weights, rows, prompt, new, options
    cores = os.cpu_count() or 1
    parts, pool = np.array_split(np.ones(BYTES // 4, np.float32), cores), ThreadPoolExecutor(cores)

    def run() -> np.ndarray:
        list(pool.map(lambda part: np.dot(part, part), parts))
        return np.zeros(0, np.int32)

    return run
