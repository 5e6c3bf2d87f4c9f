"""Reading speed of every data format, compared with the consumption of train steps on this machine.

The same documents (source of the standard library, up to a size) are written in every format, tokenized into caches,
and read as rows of 512. The consumption of the demo and of GPT-2 with 124M weights is measured in the same run. Sources
alternate for three rounds; medians are shown.

    python -m benchmarks.data [--megabytes=8]
"""

import contextlib
import io
import statistics
import sys
import tempfile
import time
from pathlib import Path

import jax

from benchmarks.tables import flags, machine, show
from registry.build import build
from registry.resolve import resolve
from runners.session import Session
from tasks.inputs.byte_text import ByteText
from tasks.inputs.indexed import IndexedInput, InputIterator
from testing import formats

ROUNDS = 3
SECONDS = 1.0  # of reading, per source and round
GOAL = 20  # reading speed in multiples of the 124M model's consumption


def update_rate(name: str, *overrides: str, steps: int = 3) -> float:
    """Returns tokens per second of an experiment's update on this machine."""
    session = Session(resolve(name, overrides), jax.devices()[:1])
    with session.placed():
        batch = session.host_batches.put(session.train.input.batch(0))
        update, state = session.functions.compile_step(batch), session.functions.init()
        state = jax.block_until_ready(update(state, batch, session.seed))
        began = time.perf_counter()
        for _ in range(steps):
            state = jax.block_until_ready(update(state, batch, session.seed))
        return steps * batch.inputs.size / (time.perf_counter() - began)


def prepared(overrides: list[str], cache: Path) -> tuple[IndexedInput, float | None]:
    """Returns an input, and the tokens per second of building its cache (None if it has none)."""
    knobs = [f"CACHE_DIR={cache}", "SEQ_LEN=512", "BATCH_SIZE=8", *overrides]
    source = build(resolve("gpt.GptStdlib", knobs).Train(), "train").input
    began = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        source.require_data()
    seconds = time.perf_counter() - began
    build_rate = len(source.tokens) / seconds if hasattr(source, "tokens") and any(cache.rglob("part.json")) else None
    return source, build_rate


def reading(batches: InputIterator) -> float:
    """Returns tokens per second of the next batches, the first one excluded."""
    next(batches)
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < SECONDS:
        count += next(batches).inputs.size
    return count / (time.perf_counter() - began)


def library_source(megabytes: float) -> list[str]:
    """Returns source files of the standard library as texts, `megabytes` in total."""
    texts, size = [], 0
    for document in ByteText().texts("train"):
        texts.append(document)
        size += len(document)
        if size > megabytes * 1e6:
            break
    return texts


def main() -> int:
    parser = flags(__doc__)
    parser.add_argument("--megabytes", type=float, default=8)
    options = parser.parse_args()
    demo = update_rate("tiny.StdlibTiny", steps=20)
    large = update_rate("gpt2.Gpt2Small", "BATCH_SIZE=1", "SEQ_LEN=512", "DTYPE=float32", "DATA=synthetic")
    with tempfile.TemporaryDirectory() as folder:
        kinds = formats.write_all(library_source(options.megabytes), Path(folder, "data"))
        kinds["jsonl, packed with masks"] = [*kinds["jsonl"], "ROWS=pack", "DOCUMENT_MASKS=true"]
        kinds["standard library"] = []
        kinds["standard library, masks"] = ["DOCUMENT_MASKS=true"]
        kinds["mixture of jsonl and tokens"] = _mixture(kinds)
        kinds["synthetic"] = ["DATA=synthetic"]
        kinds["seqio, lines packed as they are read"] = _seqio(f"{folder}/data/lines/a.txt")
        inputs = {name: prepared(sets, Path(folder, f"cache-{i}")) for i, (name, sets) in enumerate(kinds.items())}
        rates: dict[str, list[float]] = {name: [] for name in inputs}
        readers = {name: source.iterator() for name, (source, _) in inputs.items()}
        for _ in range(ROUNDS):
            for name, reader in readers.items():
                rates[name].append(reading(reader))
    lines = []
    for name, (_, build_rate) in inputs.items():
        rate = statistics.median(rates[name])
        line = {
            "source": name,
            "tokenized, tokens/s": build_rate,
            "read, tokens/s": rate,
            "times the demo's": rate / demo,
        }
        note = "" if rate >= GOAL * large else f"below {GOAL}"
        lines.append(line | {"times the 124M's": rate / large, "note": note})
    facts = {"machine": machine(), "the demo's update, tokens/s": demo, "of GPT-2 124M, 1 x 512, float32": large}
    show("data", lines, facts | {"megabytes": options.megabytes, "turns": ROUNDS}, options.publish)
    return 0


def _mixture(kinds: dict[str, list[str]]) -> list[str]:
    path = dict(item.split("=", 1) for item in [*kinds["jsonl"], *kinds["tokens"]])["DATA_PATH"]
    first = dict(item.split("=", 1) for item in kinds["jsonl"])["DATA_PATH"]
    return ["DATA=mixture", f"MIXTURE={((f'jsonl:{first}', 0.5), (f'tokens:{path}', 0.5))!r}"]


def _seqio(path: str) -> list[str]:
    from tasks.inputs.seqio.registration import lines_task

    lines_task("benchmark", {"train": path, "validation": path})
    return ["DATA=seqio", "SEQIO_TASK=vortaro_lines:benchmark", "VOCAB_SIZE=264"]


if __name__ == "__main__":
    sys.exit(main())
