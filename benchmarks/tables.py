"""Tables of benchmarks: Markdown between marks in docs/reference/benchmarks.md, and JSON in docs/measurements."""

import argparse
import json
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from tasks.storage.files import write_whole

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "reference" / "benchmarks.md"
OUT_OF_MEMORY = "out of memory"


def flags(doc: str | None) -> argparse.ArgumentParser:
    """Returns a parser with --publish, for a benchmark on the CPU or on JAX_PLATFORMS."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--publish", action="store_true", help="write the table into docs/reference/benchmarks.md")
    return parser


def machine() -> str:
    """Returns processor, cores, memory and versions of the frameworks, in one line."""
    cpu = re.search(r"model name\s*: (.*)", _read("/proc/cpuinfo"))
    memory = re.search(r"MemTotal:\s*(\d+)", _read("/proc/meminfo"))
    parts = [cpu[1] if cpu else platform.processor() or platform.machine(), f"{os.cpu_count()} cores"]
    parts += [f"{int(memory[1]) / 2**20:.0f} GiB"] if memory else []
    for package in ("jax", "torch", "transformers", "levanter"):
        try:
            parts.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join([*parts, f"Python {platform.python_version()}"])


def _read(path: str) -> str:
    return Path(path).read_text() if Path(path).exists() else ""


def measured_peak(dtype: str, sizes: Sequence[int], seconds: float = 1.0) -> float:
    """Returns FLOP/s of square matrix products, sustained for `seconds`; the best of `sizes`."""
    return max(_peak(dtype, size, seconds) for size in sizes)


def _peak(dtype: str, size: int, seconds: float) -> float:
    a, product = jax.random.normal(jax.random.key(0), (size, size), dtype), jax.jit(jnp.matmul)

    def products(count: int) -> None:
        for _ in range(count):  # the results of four products are in memory at a time
            jax.block_until_ready([product(a, a) for _ in range(4)])

    products(1)
    count = max(1, round(seconds / timed(lambda: products(1))))
    return count * 4 * 2 * size**3 / timed(lambda: products(count))


def flops_per_token(weights: int, layers: int, width: int, context: int) -> int:
    """Returns FLOPs per token of an update: 6 times the weights in products, and 6 L d T for causal attention."""
    return 6 * (weights + layers * width * context)


def timed(work: Callable[[], Any]) -> float:
    """Returns the seconds of a call of `work`."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def alternate(rounds: int, **works: Callable[[], Any]) -> dict[str, float]:
    """Returns median seconds of each function in `works`; they alternate, after one warm-up round."""
    for work in works.values():
        work()
    seconds = [{name: timed(work) for name, work in works.items()} for _ in range(rounds)]
    return {name: statistics.median(turn[name] for turn in seconds) for name in works}


def as_markdown(lines: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> str:
    """Returns facts in a sentence (dictionaries are only in the JSON), and lines as a table."""
    columns = list(dict.fromkeys(name for line in lines for name in line))
    cells = [[_cell(line.get(column)) for column in columns] for line in lines]
    rule = "| " + " | ".join("---" if i == 0 else "--:" for i in range(len(columns))) + " |"
    table = ["| " + " | ".join(columns) + " |", rule, *("| " + " | ".join(row) + " |" for row in cells)]
    sentence = "; ".join(f"{key}: {_cell(value)}" for key, value in facts.items() if not isinstance(value, dict))
    return "\n".join([f"{sentence}.", "", *table])


def show(name: str, lines: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], publish: bool) -> None:
    """Prints lines as a table; with `publish`, also writes them between the marks of `name` in the docs and as JSON."""
    text = as_markdown(lines, facts)
    print(f"\n{name}\n{text}\n", flush=True)
    if not publish:
        return
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    page = PAGE.read_text()
    before, mark, after = page.partition(begin)
    if not mark or end not in after:
        raise ValueError(f"The marks of {name} are missing in {PAGE}.")
    write_whole(PAGE, f"{before}{begin}\n{text}\n{end}{after.partition(end)[2]}")
    write_whole(DOCS / "measurements" / f"{name}.json", json.dumps({**facts, "lines": list(lines)}, indent=1) + "\n")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.2g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
