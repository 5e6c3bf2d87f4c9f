"""Benchmark of greedy decoding of GPT-2 and a Llama: our loop, transformers' generate, and a loop without a cache.

    python -m benchmarks.decoding --size='6x384 at 512'

All use the same weights and prompts. Tokens per second count new tokens; the time includes reading the prompts. With
one row, "of memory speed" is the bytes of all weights, read once per token, as a share of the bytes that all cores read
from an array in the same time.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.implementations import memory_reads, vortaro
from benchmarks.implementations.alternation import Implementation, workers
from benchmarks.implementations.work import SIZES, LlamaSize
from benchmarks.tables import flags, machine, show

IMPLEMENTATIONS = [
    Implementation("Vortaro", "vortaro"),
    Implementation("transformers, generate", "transformers_models"),
]
MEMORY = Implementation("reads of memory", "memory_reads")
UNCACHED = Implementation("Vortaro, no cache", "vortaro", ("uncached",))


def main() -> int:
    parser = flags(__doc__)
    parser.add_argument("--sizes", choices=SIZES, nargs="+", default=["6x384 at 512", "124M", "Llama 124M"])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8], help="batch sizes")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--new", type=int, default=256, help="new tokens")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    facts = {"machine": machine(), "prompt": options.prompt, "new tokens": options.new, "turns": options.rounds}
    all_same = True
    for table, are_llamas in {"decoding": False, "decoding-llama": True}.items():
        sizes = [size for size in options.sizes if isinstance(SIZES[size], LlamaSize) == are_llamas]
        lines = [line for size in sizes for rows in options.rows for line in _measured(options, size, rows)]
        same = all(float(str(line["same tokens"]).rstrip("%")) > 99 for line in lines if "ratio" in line)
        if lines:
            show(table, lines, facts, options.publish and same)
        all_same = all_same and same
    return int(not all_same)


def _measured(options: argparse.Namespace, size: str, rows: int) -> list[dict[str, object]]:
    # Without a cache the larger model would take a quarter of an hour.
    implementations = [*IMPLEMENTATIONS, *([UNCACHED] if SIZES[size].vocab < 1000 and rows == 1 else [])]
    arguments = ["decode", f"--size={size}", f"--rows={rows}", f"--prompt={options.prompt}", f"--new={options.new}"]
    with tempfile.TemporaryDirectory() as folder:
        weights = str(Path(folder, "weights.safetensors"))
        vortaro.write_weights(SIZES[size], weights)
        weight_bytes = Path(weights).stat().st_size
        with workers([*implementations, MEMORY], [*arguments, f"--weights={weights}"], Path(folder)) as started:
            for turn in range(options.rounds + 1):
                for worker in started:
                    worker.turn(1, counted=turn > 0)
    ours, memory, lines = started[0], started[-1], []
    for worker in started[:-1]:
        line: dict[str, object] = {"model": size, "rows": rows, "decoder": worker.implementation.name}
        if worker.missing is None:
            same = (np.array(worker.results[-1]) == np.array(ours.results[-1])).mean()
            line |= {"tokens/s": rows * options.new / worker.median, "ratio": ours.median / worker.median}
            line |= {"same tokens": f"{same:.1%}"}
            if rows == 1 and memory.missing is None and worker.implementation is not UNCACHED:
                speed = weight_bytes * options.new / worker.median
                line["of memory speed"] = speed / (memory_reads.BYTES / memory.median)
        else:
            line |= {"same tokens": f"missing: {worker.missing}"}
        lines.append(line)
    return lines


if __name__ == "__main__":
    sys.exit(main())
