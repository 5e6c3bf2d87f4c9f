"""Benchmark of train steps of GPT-2 and a Llama: implementations with the same weights, tokens and losses alternate.

    python -m benchmarks.training --size=6x384

Every implementation computes in float32 with huge pages (runners.machine.huge_pages), unless its name differs. MFU is
the model's share of the rate of XLA's matrix products on this machine, which alternate with the implementations; FLOPs
per token are 6 times the weights in matrix products and 6 times layers x width x context for causal attention. A ratio
is the median over turns, with its quartiles. Processes are started several times, because the memory pages that a
process receives make it faster or slower than the next by a tenth until it exits.
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.implementations import products, vortaro
from benchmarks.implementations.alternation import SMALL_PAGES, Implementation, Worker, workers
from benchmarks.implementations.work import SIZES, Gpt2Size
from benchmarks.tables import flags, flops_per_token, machine, show

OURS = ("REMAT=dots",)
IMPLEMENTATIONS = [
    Implementation("Vortaro, REMAT=dots", "vortaro", OURS),
    Implementation("Vortaro, REMAT=dots, small pages", "vortaro", OURS, SMALL_PAGES),
    Implementation("Vortaro, REMAT=none", "vortaro", ("REMAT=none",)),
    Implementation("plain JAX, scanned", "plain_jax", ("scan",)),
    Implementation("plain JAX, scanned, remat of all but products", "plain_jax", ("scan", "remat")),
    Implementation("plain JAX, unrolled", "plain_jax"),
    Implementation("plain JAX, unrolled, remat of all but products", "plain_jax", ("remat",)),
    Implementation("torch, eager", "torch_models"),
    Implementation("torch, compiled", "torch_models", ("compiled",)),
    Implementation("transformers on torch", "transformers_models"),
    Implementation("Levanter", "levanter_models"),
    Implementation("Levanter, no remat", "levanter_models", ("no_remat",)),
]
# What restricts each library to AVX2 on processors with AVX-512: XLA, torch, oneDNN and MKL. Nothing restricts YNN, to
# which XLA gives most products: they are computed by Eigen and oneDNN instead.
AVX2 = {
    "XLA_FLAGS": "--xla_cpu_max_isa=AVX2 --xla_cpu_experimental_ynn_fusion_type=",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}
PRODUCTS = Implementation("XLA's matrix products", "products")
LOSSES_AGREE = 1e-4  # relative
DIFFERS = " differs!"


def flops_of(size: Gpt2Size) -> int:
    """Returns FLOPs per token of an update (see the module docstring)."""
    return flops_per_token(size.weights_in_products, size.layers, size.width, size.context)


def measure(implementations: list[Implementation], options: argparse.Namespace) -> list[tuple[Worker, ...]]:
    """Returns each implementation's processes, one per launch, after all turns; each round starts with another one."""
    with tempfile.TemporaryDirectory() as folder:
        weights = str(Path(folder, "weights.safetensors"))
        vortaro.write_weights(SIZES[options.size], weights)
        arguments = ["train", f"--size={options.size}", f"--weights={weights}"]
        launches = []
        for launch in range(1, options.launches + 1):
            with workers(implementations, arguments, Path(folder)) as started:
                for worker in started:
                    worker.turn(1, counted=False)
                    worker.turn(1, counted=False)
                    print(f"launch {launch}, {worker.implementation.name}: {worker.missing or 'ready'}", flush=True)
                for turn in range(options.rounds):
                    first = (launch - 1) * options.rounds + turn
                    for number in range(len(started)):
                        started[(first + number) % len(started)].turn(options.updates)
            launches.append(started)
    return list(zip(*launches, strict=True))


def seconds_of(runs: Sequence[Worker]) -> list[float]:
    """Returns seconds per update, in every turn of every launch."""
    return [seconds for run in runs for seconds in run.seconds]


def missing(runs: Sequence[Worker]) -> str | None:
    """Returns why a implementation is missing, if one of its processes failed, else None."""
    return next((run.missing for run in runs if run.missing is not None), None)


def line_of(runs: Sequence[Worker], references: Sequence[Worker], size: Gpt2Size, peak: float) -> dict[str, Any]:
    """Returns a implementation's line, relative to the reference in the same turns."""
    line: dict[str, Any] = {"step of": runs[0].implementation.name}
    if (reason := missing(runs)) is not None:
        return line | {"last loss": f"missing: {reason}"}
    rate = size.rows * size.context / statistics.median(seconds_of(runs))
    pairs = list(zip(runs, references, strict=True))
    losses = [each for run, reference in pairs for each in zip(run.results, reference.results, strict=True)]
    agrees = all(abs(a - b) / b < LOSSES_AGREE for a, b in losses)  # False for NaN
    ratios = [ratio for run, reference in pairs for ratio in run.ratios(reference)]
    low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return line | {
        "tokens/s": rate,
        "ratio": statistics.median(ratios),
        "quartiles": f"{low:.2f} to {high:.2f}",
        "MFU": rate * flops_of(size) / peak,
        "peak GiB": None
        if runs[-1].peak is None
        else runs[-1].peak / 2**30,  # the last launch, whose programs are all cached
        "last loss": f"{runs[-1].results[-1]:.5f}" + ("" if agrees else DIFFERS),
    }


def compared(others: list[Implementation], options: argparse.Namespace) -> tuple[list[dict[str, Any]], float, Any]:
    """Returns lines of Vortaro and `others`, FLOP/s of matrix products in the same turns, and all seconds."""
    product, *started = measure([PRODUCTS, IMPLEMENTATIONS[0], *others], options)
    for runs in (product, started[0]):
        if (reason := missing(runs)) is not None:
            raise RuntimeError(f"{runs[0].implementation.name} did not run: {reason}")
    peak = products.FLOPS / statistics.median(seconds_of(product))
    lines = [line_of(runs, started[0], SIZES[options.size], peak) for runs in started]
    return lines, peak, {runs[0].implementation.name: [run.seconds for run in runs] for runs in (product, *started)}


def main() -> int:
    parser = flags(__doc__)
    parser.add_argument("--size", choices=SIZES, default="6x384")
    parser.add_argument("--launches", type=int, default=3, help="starts of each process")
    parser.add_argument("--rounds", type=int, default=3, help="turns per launch")
    parser.add_argument("--updates", type=int, default=5, help="updates per turn")
    parser.add_argument(
        "--together", type=int, default=len(IMPLEMENTATIONS), help="simultaneous processes, Vortaro in each group"
    )
    parser.add_argument("--avx2", action="store_true", help="without AVX-512, in all implementations")
    options = parser.parse_args()
    if options.avx2:  # of the processes that compute; this one has set up JAX already
        os.environ.update(AVX2 | {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {AVX2['XLA_FLAGS']}"})
    (ours, *others), size = IMPLEMENTATIONS, SIZES[options.size]
    lines, peaks, seconds, several = [], [], {}, max(1, options.together - 1)
    for begin in range(0, len(others), several):
        group, peak, by_implementation = compared(others[begin : begin + several], options)
        group[0]["step of"] = f"{ours.name}{', with the group below' if lines else ''}"  # machines drift between groups
        lines += group
        peaks.append(peak)
        seconds[f"group {len(peaks)}"] = by_implementation
    facts = {
        "machine": f"{machine()}{', AVX2 without AVX-512' if options.avx2 else ''}",
        "XLA's matrix products": ", ".join(f"{peak / 1e9:,.0f} GFLOP/s" for peak in peaks),
        "weights, gradient, two slots": f"{16 * size.weights / 2**30:.2f} GiB",
        "launches": options.launches,
        "turns of each": f"{options.rounds} of {options.updates} updates",
        "seconds of each turn's update": seconds,
    }
    differ = any(str(line["last loss"]).endswith(DIFFERS) for line in lines)
    table = f"training-{options.size.replace(' ', '-')}{'-avx2' if options.avx2 else ''}"
    show(table, lines, facts, options.publish and not differ)
    return int(differ)


if __name__ == "__main__":
    sys.exit(main())
