"""VQ attention against its quadratic counterpart, alternating in one process: training, forward pass, sampling.

python -m benchmarks.vq speed --lengths 2048 8192 32768
python -m benchmarks.vq flat --lengths 8192 32768 131072 --remat=full
python -m benchmarks.vq sampling --past 1024 65536
"""

import statistics
import sys
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.tables import alternate, flags, machine, show, timed
from registry.experiment import Experiment
from registry.templates.vq_lm import VQLm
from runners.session import Session
from tasks.decoding.generation import Memory, generate
from tasks.decoding.sampler import Sampler
from tasks.language_model_task import LanguageModelTask

SIZES: dict[str, Any] = {
    "NUM_LAYERS": 2,
    "MODEL_DIM": 256,
    "VOCAB_SIZE": 256,
    "BATCH_SIZE": 1,
    "DTYPE": "float32",
    "REMAT": "none",  # both recompute scores in the backward pass, per block or chunk of queries
    "LOSS_CHUNK": 512,
}


def experiment(length: int, knobs: dict[str, Any], mixer: str) -> Experiment:
    """Returns the experiment of a model to measure."""
    return VQLm.derive(**SIZES | knobs | {"SEQ_LEN": length, "MIXER": mixer})()


class Measured:
    """One model at one length: compiled programs, and their seconds."""

    def __init__(self, length: int, knobs: dict[str, Any], mixer: str):
        self.session = Session(experiment(length, knobs, mixer), jax.devices()[:1])
        self.length = length
        with self.session.placed():
            batch, _ = next(self.session.host_batches.iterate(self.session.train.input))
            self.batch, self.seed = batch, self.session.seed
            self.state = self.session.functions.init()
            self.update = self.session.functions.compile_step(batch)
            self.forward = self.session.functions.metrics_of.lower(self.state.variables, batch).compile()
        self.seconds: dict[str, list[float]] = {"train": [], "forward": []}

    def turn(self, repeats: int) -> None:
        """Times `repeats` train steps and `repeats` forward passes."""

        def train() -> None:
            for _ in range(repeats):
                self.state = jax.block_until_ready(self.update(self.state, self.batch, self.seed))

        def forward() -> None:
            for _ in range(repeats):
                jax.block_until_ready(self.forward(self.state.variables, self.batch))

        with self.session.placed():
            self.seconds["train"].append(timed(train) / repeats)
            self.seconds["forward"].append(timed(forward) / repeats)

    def rate(self, kind: str) -> float:
        """Returns tokens per second, the first turn excluded."""
        return self.length / statistics.median(self.seconds[kind][1:])

    @property
    def kib_per_token(self) -> float:
        """Temporary memory of the train step per token, by the compiler's analysis."""
        return self.update.memory_analysis().temp_size_in_bytes / self.length / 1024


def measured(lengths: list[int], kinds: dict[str, str], rounds: int, knobs: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns a line of medians per length. Models alternate; in each turn, all process the tokens of the longest row.

    Args:
      kinds: name of a model, and its MIXER.
    """
    models = {(length, name): Measured(length, knobs, kind) for length in lengths for name, kind in kinds.items()}
    for _ in range(rounds + 1):
        for model in models.values():
            model.turn(max(lengths) // model.length)
    lines = []
    for length in lengths:
        line: dict[str, Any] = {"tokens": length}
        for work in ("train", "forward"):
            rates = {name: models[length, name].rate(work) for name in kinds}
            line |= {f"{work}, {name}": rate for name, rate in rates.items()}
            if len(rates) > 1:
                first, second = rates.values()
                line[f"{work}, ratio"] = first / second
        line |= {f"KiB/token, {name}": models[length, name].kib_per_token for name in kinds}
        lines.append(line)
        print(line, flush=True)
    return lines


def sampled(pasts: list[int], new_tokens: int, rounds: int, knobs: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns sampled tokens per second after contexts of different lengths, which alternate."""
    session = Session(experiment(1024, {"NUM_LAYERS": 4} | knobs, "vq"), jax.devices()[:1])
    task = cast(LanguageModelTask, session.task)
    choices: dict[str, Any] = {"new_tokens": new_tokens, "sampler": Sampler(temperature=1.0)}
    with session.placed():
        variables = session.functions.init().variables
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
        works = {str(past): lambda past=past: jax.block_until_ready(run(past)[0]) for past in pasts}
        seconds = alternate(rounds, **works)
    sizes = {p: sum(leaf.nbytes for leaf in jax.tree.leaves(memories[p].state)) / 2**20 for p in pasts}
    first = seconds[str(pasts[0])]
    return [
        {
            "past": past,
            "tokens/s": new_tokens / seconds[str(past)],
            "of the first": first / seconds[str(past)],
            "MiB of state": sizes[past],
        }
        for past in pasts
    ]


def main() -> int:
    parser = flags(__doc__)
    parser.add_argument("table", choices=("speed", "flat", "sampling"), nargs="?", default="speed")
    parser.add_argument("--lengths", type=int, nargs="+", help="tokens of a row")
    parser.add_argument("--past", type=int, nargs="+", default=[1024, 65_536])
    parser.add_argument("--new_tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--reduction", default="scan")
    parser.add_argument("--remat", default="none", help="REMAT; VQ entries have full")
    options = parser.parse_args()
    knobs = {"REDUCTION": options.reduction, "REMAT": options.remat}
    if options.table == "sampling":
        lines = sampled(options.past, options.new_tokens, options.rounds, knobs)
    elif options.table == "flat":
        lines = measured(options.lengths or [8192, 32_768, 131_072], {"VQ": "vq"}, options.rounds, knobs)
    else:
        kinds = {"VQ": "vq", "twin": "distance"}
        several = ([length] for length in options.lengths or [2048, 8192, 32_768])
        lines = [line for lengths in several for line in measured(lengths, kinds, options.rounds, knobs)]
    facts = {"machine": machine(), **knobs, "turns": options.rounds}
    show(f"vq-{options.table}", lines, facts, options.publish)
    return 0


if __name__ == "__main__":
    sys.exit(main())
