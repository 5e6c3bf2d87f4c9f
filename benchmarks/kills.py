"""Does a run survive SIGKILL: killed at random moments and restarted, it must end in the bits of an undisturbed run.

python -m benchmarks.kills --kills=10
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp

SETTINGS = ("NUM_STEPS=400", "SAVE_EVERY=20", "EVAL_EVERY=50", "LOG_EVERY=7", "DROPOUT=0.1", "BATCH_SIZE=16")


def command(workdir: Path, settings: Sequence[str] = SETTINGS) -> list[str]:
    """The training command: a small model, saved often, at steps that are no multiple of a metrics window."""
    flags = [f"--set={setting}" for setting in settings]
    main = [sys.executable, "-m", "runners.main", "--exp=tiny.StdlibTiny", "--smoke", f"--workdir={workdir}"]
    return [*main, "--no-tensorboard", *flags]


def metrics(workdir: Path) -> list[tuple]:
    """(step, split, loss, gradient norm, tokens seen) of every line of metrics.jsonl: all but the timings."""
    path = workdir / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    keys = ("step", "split", "loss", "grad_norm", "tokens_seen")
    return [tuple(line.get(key) for key in keys) for line in lines]


def last_state(workdir: Path) -> dict[str, np.ndarray]:
    """Every array of the newest checkpoint by its path."""
    folder = workdir / "checkpoints"
    newest = max(int(path.name) for path in folder.iterdir() if path.name.isdigit())
    tree = ocp.StandardCheckpointer().restore((folder / str(newest) / "state").absolute())
    flat: dict[str, np.ndarray] = {}

    def walk(node, path):
        if isinstance(node, dict | list | tuple):
            items = node.items() if isinstance(node, dict) else enumerate(node)
            for key, child in items:
                walk(child, f"{path}/{key}")
        elif node is not None:
            flat[path] = np.asarray(node)

    walk(tree, "")
    return {"step": np.asarray(newest), **flat}


def disturbed(workdir: Path, kills: int, rng: random.Random, settings: Sequence[str] = SETTINGS) -> list[int]:
    """Runs to the end, killed so many times on the way; returns the lines of metrics there were at each kill."""
    lines_at = []
    path = workdir / "metrics.jsonl"
    steps = next(int(s.partition("=")[2]) for s in settings if s.startswith("NUM_STEPS"))
    total = steps // next(int(s.partition("=")[2]) for s in settings if s.startswith("LOG_EVERY"))
    for number in range(kills):
        process = subprocess.Popen(command(workdir, settings), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        began, have = time.monotonic(), _count(path)
        # Early kills come in the first part of the run, late ones in the last: all of it is hit.
        until = rng.randint(0, max(1, total * (number + 1) // (kills + 1)))
        while process.poll() is None and _count(path) < until and time.monotonic() - began < 120:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 4.0 if until <= have else 0.3))  # while starting, or between two lines
        process.send_signal(signal.SIGKILL)
        process.wait()
        lines_at.append(_count(path))
    subprocess.run(command(workdir, settings), check=True, stdout=subprocess.DEVNULL)
    return lines_at


def _count(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


def compare(kills: int, seed: int, folder: Path, settings: Sequence[str] = SETTINGS) -> tuple[list[int], list[str]]:
    """Lines of metrics at each kill, and the names of whatever ended differently (none, if all is well)."""
    calm, wild = folder / "calm", folder / "wild"
    subprocess.run(command(calm, settings), check=True, stdout=subprocess.DEVNULL)
    at = disturbed(wild, kills, random.Random(seed), settings)
    a, b = last_state(calm), last_state(wild)
    differing = sorted(set(a) ^ set(b)) + [name for name in a if name in b and not np.array_equal(a[name], b[name])]
    if metrics(calm) != metrics(wild):
        differing.append("metrics.jsonl")
    return at, differing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        at, differing = compare(options.kills, options.seed, Path(folder))
    print(f"{options.kills} kills, at {at} lines of metrics")
    print(
        "ended differently: " + ", ".join(differing) if differing else "ended with the same bits and the same metrics"
    )
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
