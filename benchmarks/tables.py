"""Where figures go: a Markdown table between marks in docs/benchmarks.md, and the same as JSON beside it."""

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

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "benchmarks.md"


def flags(doc: str | None) -> argparse.ArgumentParser:
    """The flags of a benchmark of the CPU (or of what JAX_PLATFORMS says), --publish among them."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--publish", action="store_true", help="write the table into docs/benchmarks.md")
    return parser


def machine() -> str:
    """Processor, cores, memory, and the versions of what computes, in one line."""
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
    """FLOP/s of square products of random matrices, kept up for so many seconds; the best of these sizes."""
    return max(_peak(dtype, size, seconds) for size in sizes)


def _peak(dtype: str, size: int, seconds: float) -> float:
    a, product = jax.random.normal(jax.random.key(0), (size, size), dtype), jax.jit(jnp.matmul)
    several = lambda: jax.block_until_ready([product(a, a) for _ in range(4)])
    several()
    count = max(1, round(seconds / timed(several)))
    return count * 4 * 2 * size**3 / timed(lambda: [several() for _ in range(count)])


def gpt_flops_per_token(layers: int, width: int, context: int, vocabulary: int) -> int:
    """Of an update of a GPT: 6 times the weights in matrix products, and 6 L d T for causal attention."""
    return 6 * (12 * layers * width**2 + vocabulary * width + layers * width * context)


def timed(work: Callable[[], Any]) -> float:
    """Seconds that it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def turn_about(rounds: int, **works: Callable[[], Any]) -> dict[str, float]:
    """Median seconds of each, all turn about, behind one turn that does not count."""
    for work in works.values():
        work()
    seconds = [{name: timed(work) for name, work in works.items()} for _ in range(rounds)]
    return {name: statistics.median(turn[name] for turn in seconds) for name in works}


def as_markdown(lines: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> str:
    """Facts in a sentence (those that are many numbers are for the JSON alone), lines as a table."""
    columns = list(dict.fromkeys(name for line in lines for name in line))
    cells = [[_cell(line.get(column)) for column in columns] for line in lines]
    rule = "| " + " | ".join("---" if i == 0 else "--:" for i in range(len(columns))) + " |"
    table = ["| " + " | ".join(columns) + " |", rule, *("| " + " | ".join(row) + " |" for row in cells)]
    said = "; ".join(f"{key}: {_cell(value)}" for key, value in facts.items() if not isinstance(value, dict))
    return "\n".join([f"{said}.", "", *table])


def show(name: str, lines: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], publish: bool) -> None:
    """Prints lines as a table; with `publish`, writes them into the docs between the marks of that name, and JSON."""
    text = as_markdown(lines, facts)
    print(f"\n{name}\n{text}\n", flush=True)
    if not publish:
        return
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    page = PAGE.read_text()
    before, found, after = page.partition(begin)
    if not found or end not in after:
        raise ValueError(f"{PAGE} has no marks of {name}")
    PAGE.write_text(f"{before}{begin}\n{text}\n{end}{after.partition(end)[2]}")
    folder = DOCS / "figures"
    (folder / f"{name}.json").write_text(json.dumps({**facts, "lines": list(lines)}, indent=1) + "\n")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.2g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
