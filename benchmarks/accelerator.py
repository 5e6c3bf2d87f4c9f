"""All of an accelerator's figures in one call of under ten minutes: dense models, long rows, decoding.

    python -m benchmarks.accelerator --publish

Dense language models in bfloat16 with float32 weights, no remat, heads of 128, 50,304 tokens. MFU is the share of this
card's own bfloat16 matrix products, measured in the same run: per token 6 times the weights in matrix products and 6
times layers x width x context for causal attention. JAX and this project are all it needs: no TensorFlow, seqio, clu.
"""

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from benchmarks.tables import gpt_flops_per_token, machine, measured_peak, show, timed
from registry.resolve import resolve
from runners.session import Session
from tasks.decoding import Sampler, generate


@dataclasses.dataclass(frozen=True)
class Dense:
    """A dense model, and what share of the card's matrix products is hoped for."""

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
COMMON = ["DATA=synthetic", "DROPOUT=0", "DTYPE=bfloat16", "REMAT=none", "USE_BIAS=false", "LOG_EVERY=1000000"]


class Watch:
    """The time that is left of a call."""

    def __init__(self, seconds: float):
        self._end = time.monotonic() + seconds

    def within(self, works: list[tuple[str, Callable[[], list[dict[str, Any]]]]]) -> Iterator[dict[str, Any]]:
        """What each work measures; those that no time is left for, and those that fail, say so in their line."""
        for name, work in works:
            if time.monotonic() > self._end:
                yield {"what": name, "note": "not measured: no time left"}
                continue
            try:
                lines = work()
            except (jax.errors.JaxRuntimeError, ValueError) as error:
                lines = [{"what": name, "note": f"failed: {str(error).splitlines()[0][:150]}"}]
            for line in lines:
                print(line, flush=True)
                yield line


def update_seconds(session: Session, updates: int = 10) -> tuple[float, str]:
    """Of one update, several queued ahead; and an alarm where attention went another way than cuDNN's on a GPU."""
    with session.placed():
        batch = session.put(session.train.input.batch(0))
        compiled = session.compile_step(batch)
        state = jax.block_until_ready(compiled(session.init(), batch, session.seed))

        def some() -> None:
            nonlocal state
            for _ in range(updates):
                state = compiled(state, batch, session.seed)
            jax.block_until_ready(state)

        some()
        seconds = min(timed(some) for _ in range(3)) / updates
    flash = "cudnn$fmha" in compiled.as_text()
    return seconds, "" if flash or jax.default_backend() != "gpu" else "ALARM: attention is not cuDNN's"


def dense(model: Dense, tokens: int, vocabulary: int, *settings: str) -> Session:
    """The model with batches of so many tokens."""
    sizes = {"NUM_LAYERS": model.layers, "MODEL_DIM": model.width, "NUM_HEADS": model.width // 128}
    sizes |= {"SEQ_LEN": model.context, "BATCH_SIZE": max(1, tokens // model.context), "VOCAB_SIZE": vocabulary}
    overrides = [*COMMON, *(f"{name}={value}" for name, value in sizes.items()), *settings]
    return Session(resolve("gpt2.Gpt2Small", overrides), jax.devices()[:1])


def training(model: Dense, tokens: int, vocabulary: int, peak: float, *settings: str) -> list[dict[str, Any]]:
    """One line: tokens per second and MFU of a dense model."""
    session = dense(model, tokens, vocabulary, *settings)
    seconds, alarm = update_seconds(session)
    rate = session.sample_batch.inputs.size / seconds
    share = rate * gpt_flops_per_token(model.layers, model.width, model.context, vocabulary) / peak
    said = f"{model.name}, {tokens:,} tokens" + "".join(f", {setting}" for setting in settings)
    return [{"what": said, "tokens/s": rate, "MFU": share, "goal": model.goal, "stretch": model.stretch, "note": alarm}]


def long_rows(length: int, width: int, layers: int) -> list[dict[str, Any]]:
    """One line, one row: gated units with VQ attention against GPT blocks with flash attention, as wide and as many."""
    sizes = [f"NUM_LAYERS={layers}", f"MODEL_DIM={width}", f"SEQ_LEN={length}", "BATCH_SIZE=1", "VOCAB_SIZE=256"]
    ours = [*sizes, "DATA=synthetic", "DTYPE=bfloat16", "REMAT=none", "REDUCTION=scan", "LOG_EVERY=1000000"]
    vq_model = resolve("vq.VQStdlib", [*ours, "KEY_DIM=128", "BLOCK_LEN=512", "NUM_CODES=512"])
    linear = Session(vq_model, jax.devices()[:1])
    vq, _ = update_seconds(linear, 3)
    shape = Dense("", layers, width, length, 0, 0)
    quadratic = dense(shape, length, 256, "POSITIONS=rotary", "LOSS_CHUNK=512")
    full, alarm = update_seconds(quadratic, 3)
    line = {"what": f"rows of {length:,}", "VQ, tokens/s": length / vq, "full attention": length / full}
    weights = (sum(row.size for row in session.task.weight_table()) / 1e6 for session in (linear, quadratic))
    said = "weights {:.0f} M and {:.0f} M".format(*weights)
    return [line | {"ratio": full / vq, "note": f"{said} {alarm}".strip()}]


def decoding(model: Dense, rows: int, new: int) -> list[dict[str, Any]]:
    """One line: greedy tokens per second behind prompts of 128."""
    session = dense(model, model.context, VOCABULARY if model.layers > 2 else 256)
    prompt = min(128, model.context // 2)
    tokens = np.random.default_rng(0).integers(0, 256, (rows, prompt), dtype=np.int32)
    with session.placed():
        arguments = (session.task, session.init().variables, tokens, np.ones_like(tokens), jax.random.key(0))
        call = lambda: jax.block_until_ready(generate(*arguments, new_tokens=new, sampler=Sampler(temperature=0.0))[0])
        call()
        seconds = min(timed(call) for _ in range(3))
    return [{"what": f"decoding {model.name}, {rows} rows", "tokens/s": rows * new / seconds}]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=480, help="nothing new is begun behind them")
    parser.add_argument("--tokens", type=int, default=32_768, help="of a batch")
    parser.add_argument("--tiny", action="store_true", help="small models, to see that it runs")
    parser.add_argument("--publish", action="store_true", help="write the tables into docs/benchmarks.md")
    options = parser.parse_args()
    tiny = options.tiny
    peak = measured_peak("bfloat16", (256,) if tiny else (8192, 16_384))
    models, tokens, vocabulary = (TINY, 256, 256) if tiny else (DENSE, options.tokens, VOCABULARY)
    choices = [(), ("LOSS_CHUNK=32",)] if tiny else [(), ("LOSS_CHUNK=256",), ("LOSS_CHUNK=256", "UNROLL=100")]
    watch = Watch(options.seconds)
    train = lambda model, choice: lambda: training(model, tokens, vocabulary, peak, *choice)
    works = [(f"{model.name} {choice}", train(model, choice)) for choice in choices for model in models]
    lengths, width, layers = ((1024,), 128, 1) if tiny else ((8192, 32_768, 131_072), 1024, 4)
    rows = [(f"rows of {n:,}", lambda n=n: long_rows(n, width, layers)) for n in lengths]
    decode = [(f"decoding {n} rows", lambda n=n: decoding(models[0], n, 8 if tiny else 256)) for n in (1, 64)]
    # The first choice for all, then what else is asked for, then more choices.
    first, more = works[: len(models)], works[len(models) :]
    device = jax.devices()[0].device_kind
    facts = {"machine": machine(), "device": device, "matrix products": f"{peak / 1e12:,.1f} TFLOP/s"}
    trained, long, decoded = (list(watch.within(each)) for each in (first, rows, decode))
    trained += watch.within(more)
    publish = options.publish and not tiny
    show("accelerator-training", trained, facts, publish)
    show("accelerator-long-rows", long, facts, publish)
    show("accelerator-decoding", decoded, facts, publish)
    return 0


if __name__ == "__main__":
    sys.exit(main())
