"""Benchmark of an accelerator in one call of under ten minutes: dense models, long rows, decoding.

    python -m benchmarks.accelerator --publish

Dense language models in bfloat16 with float32 weights, without remat, heads of 128, a vocabulary of 50,304, rows of
random tokens without padding. MFU is the share of the card's bfloat16 matrix product rate, measured in the same run,
with FLOPs per token of 6 times the weights in matrix products and 6 times layers x width x context for causal
attention. Requires only JAX and this project: no TensorFlow, seqio, clu. Tables are written after every line; the exit
code is 1 if a line failed.
"""

import argparse
import dataclasses
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from benchmarks.tables import OUT_OF_MEMORY, flops_per_token, machine, measured_peak, show, timed
from registry.resolve import resolve
from runners.session import Session
from tasks.batch import Batch
from tasks.decoding.generation import generate
from tasks.decoding.sampler import Sampler


@dataclasses.dataclass(frozen=True)
class Dense:
    """A dense model, with the goals for its MFU."""

    name: str
    layers: int
    width: int
    context: int
    goal: float
    stretch: float


DENSE = [
    Dense("124M", 12, 768, 1024, 0.55, 0.62),
    Dense("354M", 24, 1024, 1024, 0.60, 0.67),
    Dense("757M", 24, 1536, 2048, 0.63, 0.70),
    Dense("1.3B", 24, 2048, 2048, 0.66, 0.73),
]
TINY = [Dense("tiny", 2, 128, 64, 0.0, 0.0)]
VOCABULARY = 50_304
COMMON = ["DATA=synthetic", "DROPOUT=0", "DTYPE=bfloat16", "REMAT=none", "BIASES=()", "LOG_EVERY=1000000"]


JOINT = "task.model.stack.block.mixer.joint_projections=true"
ALARM = "ALARM: attention is not cuDNN's"
FAILED = "failed: "
Work = tuple[str, Callable[[], dict[str, Any]]]


class Tables:
    """Tables of a call, filled until its time limit."""

    def __init__(self, seconds: float, facts: dict[str, Any], publish: bool):
        self._end, self._facts, self._publish = time.monotonic() + seconds, facts, publish
        self._lines: dict[str, list[dict[str, Any]]] = {}
        self.sound = True  # no line failed or used the slow attention

    def fill(self, name: str, works: list[Work]) -> None:
        """Adds a line per work and shows the table; a line's note records a failure or a lack of time."""
        lines = self._lines.setdefault(name, [])
        for label, work in works:
            if time.monotonic() > self._end:
                lines.append({"what": label, "note": "not measured: no time left"})
                continue
            try:
                lines.append({"what": label, **work()})
            except Exception as error:  # a failure must not discard the other lines
                reason = OUT_OF_MEMORY if "RESOURCE_EXHAUSTED" in str(error) else f"{type(error).__name__} {error}"
                lines.append({"what": label, "note": f"{FAILED}{reason}".splitlines()[0][:150]})
            self.sound &= not str(lines[-1].get("note", "")).startswith((ALARM, FAILED))
            show(name, lines, self._facts, self._publish)


def whole_rows(session: Session) -> Batch:
    """Returns rows of random tokens without document boundaries, which flash attention needs."""
    rows, length = session.abstract.sample_batch.inputs.shape
    tokens = np.random.default_rng(0).integers(0, 256, (rows, length + 1), dtype=np.int32)
    return Batch(inputs=tokens[:, :-1], targets=tokens[:, 1:], weights=np.ones((rows, length), np.float32))


def update_seconds(session: Session, updates: int = 10) -> tuple[float, dict[str, Any]]:
    """Returns seconds per update, several queued; its memory, and an alarm if a GPU's attention is not cuDNN's."""
    with session.placed():
        batch = session.host_batches.put(whole_rows(session))
        compiled = session.functions.compile_step(batch)
        state = jax.block_until_ready(compiled(session.functions.init(), batch, session.seed))

        def some() -> None:
            nonlocal state
            for _ in range(updates):
                state = compiled(state, batch, session.seed)
            jax.block_until_ready(state)

        some()
        seconds = statistics.median(timed(some) for _ in range(3)) / updates
    sizes: Any = compiled.memory_analysis()
    total_bytes = sizes.temp_size_in_bytes + sizes.argument_size_in_bytes
    flash = "cudnn$fmha" in compiled.as_text() or jax.default_backend() != "gpu"
    return seconds, {"GiB": total_bytes / 2**30, "note": "" if flash else ALARM}


def dense(model: Dense, tokens: int, vocabulary: int, *settings: str) -> Session:
    """Returns a session of the model with batches of `tokens` tokens."""
    sizes = {"NUM_LAYERS": model.layers, "MODEL_DIM": model.width, "NUM_HEADS": model.width // 128}
    sizes |= {"SEQ_LEN": model.context, "BATCH_SIZE": max(1, tokens // model.context), "VOCAB_SIZE": vocabulary}
    overrides = [*COMMON, *(f"{name}={value}" for name, value in sizes.items()), *settings]
    return Session(resolve("gpt2.Gpt2Small", overrides), jax.devices()[:1])


def training(model: Dense, tokens: int, vocabulary: int, peak: float, *settings: str) -> dict[str, Any]:
    """Returns tokens per second and MFU of a dense model."""
    session = dense(model, tokens, vocabulary, *settings)
    seconds, more = update_seconds(session)
    rate = session.abstract.sample_batch.inputs.size / seconds
    weights = 12 * model.layers * model.width**2 + vocabulary * model.width  # in products
    share = rate * flops_per_token(weights, model.layers, model.width, model.context) / peak
    return {"tokens/s": rate, "MFU": share, "goal": model.goal, "stretch": model.stretch, **more}


def long_rows(length: int, width: int, layers: int) -> dict[str, Any]:
    """Compares gated units with VQ attention to GPT blocks with flash attention, equal in width and number."""
    sizes = [f"NUM_LAYERS={layers}", f"MODEL_DIM={width}", f"SEQ_LEN={length}", "BATCH_SIZE=1", "VOCAB_SIZE=256"]
    ours = [*sizes, "DATA=synthetic", "DTYPE=bfloat16", "REMAT=none", "REDUCTION=scan", "LOG_EVERY=1000000"]
    vq_model = resolve(
        "vq.VQStdlib", [*ours, f"NUM_LAYERS={2 * layers}", "HEAD_DIM=128", "BLOCK_LEN=512", "NUM_CODES=512"]
    )
    linear = Session(vq_model, jax.devices()[:1])
    vq, sizes = update_seconds(linear, 3)
    shape = Dense("", layers, width, length, 0, 0)
    quadratic = dense(shape, length, 256, "POSITIONS=rotary", "LOSS_CHUNK=512")
    full, more = update_seconds(quadratic, 3)
    line = {"VQ, tokens/s": length / vq, "full attention": length / full, "ratio": full / vq}
    for name, session, memory in (("VQ", linear, sizes), ("full", quadratic, more)):
        line |= {f"{name}, M weights": sum(row.size for row in session.task.weight_table()) / 1e6}
        line |= {f"{name}, GiB": memory["GiB"]}
    return line | {"note": more["note"]}


def decoding(model: Dense, rows: int, new: int) -> dict[str, Any]:
    """Returns tokens per second of greedy decoding after prompts of 128 tokens."""
    session = dense(model, model.context, VOCABULARY if model.layers > 2 else 256)
    prompt = min(128, model.context // 2)
    tokens = np.random.default_rng(0).integers(0, 256, (rows, prompt), dtype=np.int32)
    with session.placed():
        arguments = (session.task, session.functions.init().variables, tokens, np.ones_like(tokens), jax.random.key(0))
        call = lambda: jax.block_until_ready(generate(*arguments, new_tokens=new, sampler=Sampler(temperature=0.0))[0])
        call()
        seconds = statistics.median(timed(call) for _ in range(3))
    return {"tokens/s": rows * new / seconds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=480, help="time limit after which no line is started")
    parser.add_argument("--tokens", type=int, default=32_768, help="tokens per batch")
    parser.add_argument("--tiny", action="store_true", help="small models, to test the script")
    parser.add_argument("--publish", action="store_true", help="write the tables into docs/reference/benchmarks.md")
    options = parser.parse_args()
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.92")  # JAX's default of 0.75 is for shared cards
    tiny = options.tiny
    if options.publish and (tiny or jax.default_backend() == "cpu"):
        print("--publish needs an accelerator and full-size models. Remove --publish or --tiny.", file=sys.stderr)
        return 2
    peak = measured_peak("bfloat16", (256,) if tiny else (8192, 16_384))
    facts = {
        "machine": machine(),
        "device": jax.devices()[0].device_kind,
        "matrix products": f"{peak / 1e12:,.1f} TFLOP/s",
    }
    models, tokens, vocabulary = (TINY, 256, 256) if tiny else (DENSE, options.tokens, VOCABULARY)

    def train(*settings: str) -> list[Work]:
        suffix = "".join(f", {setting.rpartition('.')[2]}" for setting in settings)
        work = lambda model: lambda: training(model, tokens, vocabulary, peak, *settings)
        return [(f"{model.name}, {tokens:,} tokens{suffix}", work(model)) for model in models]

    tables = Tables(options.seconds, facts, options.publish)
    chunk = "LOSS_CHUNK=32" if tiny else "LOSS_CHUNK=256"
    # The default settings for all models, then long rows and decoding, then other settings.
    tables.fill("accelerator-training", train())
    lengths, width, layers = ((1024,), 128, 1) if tiny else ((8192, 32_768, 131_072), 1024, 4)
    rows = [(f"rows of {n:,}", lambda n=n: long_rows(n, width, layers)) for n in lengths]
    tables.fill("accelerator-long-rows", rows)
    decode = [(f"{models[0].name}, {n} rows", lambda n=n: decoding(models[0], n, 8 if tiny else 256)) for n in (1, 64)]
    tables.fill("accelerator-decoding", decode)
    tables.fill("accelerator-training", [*train(chunk), *train(chunk, JOINT), *train(chunk, "UNROLL=100")])
    return 0 if tables.sound else 1


if __name__ == "__main__":
    sys.exit(main())
