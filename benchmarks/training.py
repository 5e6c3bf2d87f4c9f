"""Train steps of GPT-2 side by side: the same weights, tokens, optimizer and losses, in codes that take turns.

    python -m benchmarks.training --size=6x384

Every contender computes in float32 and has large pages (runners.large_pages), except where its line says otherwise. MFU
is the share of XLA's matrix products on this machine (measured in the same run) that goes into the model: per token, 6
times the weights in matrix products and 6 times layers x width x context for causal attention.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.contenders import vortaro
from benchmarks.contenders.work import SIZES, Gpt2Size
from benchmarks.tables import gpt_flops_per_token, machine, measured_peak, show
from benchmarks.turns import SMALL_PAGES, Contender, Worker, workers

OURS = ("REMAT=dots",)
CONTENDERS = [
    Contender("Vortaro, REMAT=dots", "vortaro", OURS),
    Contender("Vortaro, REMAT=dots, small pages", "vortaro", OURS, SMALL_PAGES),
    Contender("Vortaro, REMAT=none", "vortaro"),
    Contender("plain JAX, scanned", "plain_jax", ("scan",)),
    Contender("plain JAX, scanned, remat of all but products", "plain_jax", ("scan", "remat")),
    Contender("plain JAX, unrolled", "plain_jax"),
    Contender("torch, eager", "torch_gpt2"),
    Contender("torch, compiled", "torch_gpt2", ("compiled",)),
    Contender("transformers on torch", "transformers_gpt2"),
    Contender("Levanter", "levanter_gpt2"),
    Contender("Levanter, no remat", "levanter_gpt2", ("no_remat",)),
]
LOSSES_AGREE = 1e-4  # relative
DIFFERS = " differs!"


def flops_per_token(size: Gpt2Size) -> float:
    """Of an update: see the top."""
    return gpt_flops_per_token(size.layers, size.width, size.context, size.vocab)


def measure(contenders: list[Contender], options: argparse.Namespace) -> list[Worker]:
    """The contenders' processes behind all turns; each turn about begins with another one."""
    with tempfile.TemporaryDirectory() as folder:
        weights = str(Path(folder, "weights.safetensors"))
        vortaro.write_weights(SIZES[options.size], weights)
        arguments = ["train", f"--size={options.size}", f"--weights={weights}"]
        with workers(contenders, arguments, Path(folder)) as started:
            for worker in started:
                worker.turn(1, counted=False)
                worker.turn(1, counted=False)
                print(f"{worker.contender.name}: {worker.missing or 'ready'}", flush=True)
            for first in range(options.rounds):
                for number in range(len(started)):
                    started[(first + number) % len(started)].turn(options.updates)
    return started


def line_of(worker: Worker, reference: Worker, size: Gpt2Size, peak: float) -> dict[str, object]:
    """A contender's figures, against those of the reference in the same turns."""
    line: dict[str, object] = {"step of": worker.contender.name}
    if worker.missing is not None:
        return line | {"last loss": f"missing: {worker.missing}"}
    rate = size.rows * size.context / worker.median
    pairs = zip(worker.results, reference.results, strict=True)
    agrees = all(abs(a - b) / b < LOSSES_AGREE for a, b in pairs)  # not so where one is no number
    return line | {
        "tokens/s": rate,
        "ratio": reference.median / worker.median,
        "MFU": rate * flops_per_token(size) / peak,
        "peak GiB": worker.peak / 2**30,
        "last loss": f"{worker.results[-1]:.5f}" + ("" if agrees else DIFFERS),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="6x384")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=5, help="of a turn")
    parser.add_argument("--together", type=int, default=len(CONTENDERS), help="processes at once, ours in each group")
    parser.add_argument("--publish", action="store_true", help="write the table into docs/benchmarks.md")
    options = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    (ours, *others), size, lines = CONTENDERS, SIZES[options.size], []
    peak, several = measured_peak(), max(1, options.together - 1)
    for begin in range(0, len(others), several):
        reference, *started = measure([ours, *others[begin : begin + several]], options)
        if reference.missing is not None:
            print(f"{ours.name} did not run: {reference.missing}", file=sys.stderr)
            return 1
        again = [line_of(worker, reference, size, peak) for worker in (reference, *started)]
        again[0]["step of"] = f"{ours.name}{', beside those below' if lines else ''}"  # machines drift between groups
        lines += again
    weights = 12 * size.layers * size.width**2 + (size.vocab + size.context) * size.width
    facts = {
        "machine": machine(),
        "XLA's matrix products": f"{max(peak, measured_peak()) / 1e9:,.0f} GFLOP/s",
        "weights, gradient, two slots": f"{16 * weights / 2**30:.2f} GiB",
        "turns": f"{options.rounds} of {options.updates} updates",
    }
    differ = any(str(line["last loss"]).endswith(DIFFERS) for line in lines)
    show(f"training-{options.size}", lines, facts, options.publish and not differ)
    return int(differ)


if __name__ == "__main__":
    sys.exit(main())
