"""Start-up times: commands, imports, the first update, compilation by number of layers.

python -m benchmarks.startup
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from benchmarks.implementations.alternation import ROOT
from benchmarks.tables import flags, machine, show, timed
from registry.resolve import resolve
from runners.machine.compilation_cache import FOLDER
from runners.session import Session
from tasks.decoding.generation import Sampler, generate

COMMANDS = {
    "registry list": "-m registry list",
    "registry show gshard.DenseLm128B8x8": "-m registry show gshard.DenseLm128B8x8",
    "registry diff tiny.StdlibTiny tiny.StdlibSmall": "-m registry diff tiny.StdlibTiny tiny.StdlibSmall",
    "runners.main --help": "-m runners.main --help",
}
MODULES = ("numpy", "jax", "optax", "flax.linen", "orbax.checkpoint", "layers.language_model", "registry.resolve")
MODULES += ("tasks.language_model_task", "registry.experiments.gshard", "runners.session", "runners.training.train")
MODULES += ("launch.command_line",)
# `make bench` sets GLIBC_TUNABLES for processes that cannot restart themselves; commands restart, which counts here.
NOT_TYPED = ("GLIBC_TUNABLES", "PYTHONDONTWRITEBYTECODE")  # with the latter, Python compiles every module again
AS_TYPED = {name: value for name, value in os.environ.items() if name not in NOT_TYPED} | {"JAX_PLATFORMS": "cpu"}
TRAIN = ["-m", "runners.main", "--exp=tiny.StdlibTiny", "--no-tensorboard", "--set=LOG_EVERY=1", "--set=NUM_STEPS=120"]


def first_step(cache: str) -> float:
    """Returns seconds from the start of the command to the log line of the first update."""
    environment = AS_TYPED | {"XDG_CACHE_HOME": cache}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-u", *TRAIN, f"--workdir={folder}"]
        began = time.perf_counter()
        run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
        assert run.stdout is not None
        has_step = any(line.lstrip().startswith("step") for line in run.stdout)
        seconds = time.perf_counter() - began
        run.kill()
        run.communicate()
    if not has_step:
        raise RuntimeError("the run ended before its first update")
    return seconds


def compile_seconds(layers: int, unroll: int) -> float:
    """Returns seconds to trace and compile a train step of tiny.StdlibTiny with `layers` layers."""
    session = Session(resolve("tiny.StdlibTiny", [f"NUM_LAYERS={layers}", f"UNROLL={unroll}"]))
    with session.placed():
        batch = session.host_batches.put(session.train.input.batch(0))
        return timed(lambda: session.functions.compile_step(batch))


def decoding_seconds(layers: int) -> float:
    """Returns seconds to compile the decoding of 64 tokens of tiny.StdlibTiny with `layers` layers."""
    session = Session(resolve("tiny.StdlibTiny", [f"NUM_LAYERS={layers}"]))
    tokens = np.ones((1, 8), np.int32)
    with session.placed():
        arguments = (session.task, session.abstract.state.variables, tokens, tokens, jax.random.key(0))
        return timed(lambda: generate.lower(*arguments, new_tokens=64, sampler=Sampler()).compile())


def main() -> int:
    parser = flags(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    run = lambda *arguments: (
        subprocess.run([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.DEVNULL, env=AS_TYPED).returncode
    )
    works = {name: line.split() for name, line in COMMANDS.items()}
    works |= {f"import {name}": ["-c", f"import {name}"] for name in MODULES} | {"python alone": ["-c", ""]}
    bad = [name for name, work in works.items() if run(*work) not in (0, 1)]  # 1: `registry diff` found a difference
    if bad:
        print(f"Commands failed: {', '.join(bad)}.", file=sys.stderr)
        return 1
    once = lambda: {name: timed(lambda work=work: run(*work)) for name, work in works.items()}
    turns = [once() for _ in range(options.rounds)]
    lines = [{"what": name, "seconds": statistics.median(turn[name] for turn in turns)} for name in works]
    with tempfile.TemporaryDirectory() as cache:
        name = "first update of the demo"
        lines.append({"what": f"{name}, nothing in the cache folder yet", "seconds": first_step(cache)})
        shutil.rmtree(Path(cache, "vortaro", FOLDER))
        lines.append({"what": f"{name}, nothing compiled yet", "seconds": first_step(cache)})
        warm = statistics.median(first_step(cache) for _ in range(options.rounds))
        lines.append({"what": f"{name}, from the compilation cache", "seconds": warm})
    compiles: dict[str, Callable[[], float]] = {}
    for unroll in ("scanned", "unrolled"):
        for n in (4, 16, 64):
            turn = lambda n=n, unroll=unroll: compile_seconds(n, n if unroll == "unrolled" else 1)
            compiles[f"compile a step of {n} layers, {unroll}"] = turn
    compiles |= {f"compile decoding with {n} layers": lambda n=n: decoding_seconds(n) for n in (4, 16, 64)}
    compile_seconds(2, 1)  # one-time set-up of the compiler
    for name, work in compiles.items():
        lines.append({"what": name, "seconds": statistics.median(work() for _ in range(options.rounds))})
    show("start-up", lines, {"machine": machine(), "turns": options.rounds}, options.publish)
    return 0


if __name__ == "__main__":
    sys.exit(main())
