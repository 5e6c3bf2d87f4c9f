"""VQ attention against its quadratic twin, turn about in one process: train step, forward pass, memory, sampling.

python -m benchmarks.vq speed --lengths 2048 8192 32768
python -m benchmarks.vq flat --lengths 8192 32768 131072
python -m benchmarks.vq sampling --past 1024 65536
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from registry.experiment import Experiment
from registry.experiments.vq_lm import VQLm
from runners.session import Session
from tasks.decoding import Memory, Sampler, generate
from tasks.language_model_task import LanguageModelTask

SIZES: dict[str, Any] = {
    "NUM_LAYERS": 1,  # two gated units
    "MODEL_DIM": 256,
    "VOCAB_SIZE": 256,
    "BATCH_SIZE": 1,
    "DTYPE": "float32",
    "REMAT": "none",  # both compute scores again in the backward pass, a block or a chunk of queries at a time
    "LOSS_CHUNK": 512,
}


def experiment(length: int, knobs: dict[str, Any], attention: str) -> Experiment:
    """The model to be measured."""
    return VQLm.derive(**SIZES | knobs | {"SEQ_LEN": length, "ATTENTION": attention})()


class Measured:
    """One model at one length: its compiled programs, and what they took."""

    def __init__(self, length: int, knobs: dict[str, Any], attention: str):
        self.session = Session(experiment(length, knobs, attention), jax.devices()[:1])
        self.length = length
        with self.session.placed():
            batch, _ = next(self.session.batches(self.session.train.input))
            self.batch, self.seed = batch, self.session.seed
            self.state = self.session.init()
            self.update = self.session.compile_step(batch)
            self.forward = self.session.metrics_of.lower(self.state.variables, batch).compile()
        self.seconds: dict[str, list[float]] = {"train": [], "forward": []}

    def turn(self, repeats: int) -> None:
        """So many train steps, and so many forward passes."""
        with self.session.placed():
            began = time.perf_counter()
            for _ in range(repeats):
                self.state = jax.block_until_ready(self.update(self.state, self.batch, self.seed))
            self.seconds["train"].append((time.perf_counter() - began) / repeats)
            began = time.perf_counter()
            for _ in range(repeats):
                jax.block_until_ready(self.forward(self.state.variables, self.batch))
            self.seconds["forward"].append((time.perf_counter() - began) / repeats)

    def rate(self, kind: str) -> float:
        """Tokens per second, the first turn left out."""
        return self.length / statistics.median(self.seconds[kind][1:])

    @property
    def bytes_per_token(self) -> float:
        """Temporaries of the train step, by the compiler's analysis."""
        return self.update.memory_analysis().temp_size_in_bytes / self.length

    @property
    def flops_per_token(self) -> float:
        """Of the model, three times the forward pass."""
        return self.session.flops_per_token


def speed(lengths: list[int], rounds: int, knobs: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of the table, medians: turns of both models interleaved, length by length."""
    return [row for length in lengths for row in measure([length], ["vq", "full"], rounds, knobs)]


def measure(lengths: list[int], kinds: list[str], rounds: int, knobs: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of the table for models that take turns; in each turn, all read as many tokens as the longest row has."""
    models = {(length, kind): Measured(length, knobs, kind) for length in lengths for kind in kinds}
    for _ in range(rounds + 1):
        for model in models.values():
            model.turn(max(lengths) // model.length)
    rows = []
    for length in lengths:
        row: dict[str, Any] = {"length": length}
        for kind in kinds:
            model = models[length, kind]
            row[kind] = {
                "train": model.rate("train"),
                "forward": model.rate("forward"),
                "bytes_per_token": model.bytes_per_token,
                "flops_per_token": model.flops_per_token,
            }
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def show_speed(rows: list[dict[str, Any]]) -> None:
    """Prints the table."""
    table = Table(title="VQ attention and its quadratic twin, tokens per second")
    for name in ("tokens", "train VQ", "train full", "ratio", "forward VQ", "forward full", "ratio"):
        table.add_column(name, justify="right")
    for name in ("KiB/token VQ", "KiB/token full", "MFLOP/token VQ", "full"):
        table.add_column(name, justify="right")
    for row in rows:
        vq, full = row["vq"], row.get("full")
        cells = [f"{row['length']:,}"]
        for kind in ("train", "forward"):
            cells.append(f"{vq[kind]:,.0f}")
            cells += [f"{full[kind]:,.0f}", f"{vq[kind] / full[kind]:.1f}"] if full else ["", ""]
        for key, unit in (("bytes_per_token", 1024), ("flops_per_token", 1e6)):
            cells += [f"{vq[key] / unit:,.1f}", f"{full[key] / unit:,.1f}" if full else ""]
        table.add_row(*cells)
    Console(width=132).print(table)


def sampling(pasts: list[int], new_tokens: int, rounds: int, knobs: dict[str, Any]) -> None:
    """Tokens per second behind pasts of different lengths, turn about."""
    session = Session(experiment(1024, {"NUM_LAYERS": 2} | knobs, "vq"), jax.devices()[:1])
    task = cast(LanguageModelTask, session.task)
    choices: dict[str, Any] = {"new_tokens": new_tokens, "sampler": Sampler(temperature=1.0)}
    rates: dict[int, list[float]] = {past: [] for past in pasts}
    with session.placed():
        variables = session.init().variables
        read: Callable[..., Any] = jax.jit(task.decode_step)
        memories = {}
        for past in pasts:
            tokens = np.random.default_rng(0).integers(0, 256, (1, past)).astype(np.int32)
            _, state = read(variables, tokens, task.init_decode_state(1, past))
            memories[past] = Memory(state, jnp.zeros(1, jnp.int32), jnp.full(1, past, jnp.int32), jnp.int32(0))
        nothing = np.zeros((1, 0), np.int32)
        run = lambda past: generate(
            task, variables, nothing, nothing, jax.random.key(0), memory=memories[past], capacity=1, **choices
        )
        for past in pasts * rounds:
            began = time.perf_counter()
            jax.block_until_ready(run(past)[0])
            rates[past].append(new_tokens / (time.perf_counter() - began))
    medians = {past: statistics.median(values[1:]) for past, values in rates.items()}
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(memories[pasts[0]].state))
    print(f"State: {size / 2**20:.2f} MiB, whatever came before.")
    for past, rate in medians.items():
        print(f"behind {past:>7,} tokens: {rate:,.0f} tokens/s, {rate / medians[pasts[0]]:.2f} of the first")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "flat", "sampling"), nargs="?", default="speed")
    parser.add_argument("--lengths", type=int, nargs="+", help="tokens of a row")
    parser.add_argument("--past", type=int, nargs="+", default=[1024, 65_536])
    parser.add_argument("--new_tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--reduction", default="scan")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    knobs = {"REDUCTION": options.reduction}
    print(f"{platform.processor() or platform.machine()}, jax {jax.__version__}, {jax.devices()[0].device_kind}")
    if options.what == "sampling":
        sampling(options.past, options.new_tokens, options.rounds + 1, knobs)
        return 0
    if options.what == "speed":
        rows = speed(options.lengths or [2048, 8192, 32_768], options.rounds, knobs)
    else:
        rows = measure(options.lengths or [8192, 32_768, 131_072], ["vq"], options.rounds, knobs)
    show_speed(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
