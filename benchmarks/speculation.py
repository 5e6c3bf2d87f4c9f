"""Benchmark of speculative decoding: a model of 6 layers, 384 wide, with a draft of one layer, 128 wide.

    python -m benchmarks.speculation

Both are trained on Python's standard library first, for some minutes. Greedy tokens must be the same with and without a
draft. Tokens per second count new tokens of held-out prompts; the time includes reading the prompts.
"""

import sys
import tempfile
from typing import Any

import jax
import numpy as np

from benchmarks.tables import alternate, flags, machine, show
from registry.resolve import resolve
from runners.session import Session
from runners.training.checkpoints import Checkpoints
from runners.training.train import TrainOptions, train
from runners.training.workdir import open_workdir
from tasks.decoding.generation import generate
from tasks.decoding.sampler import Sampler
from tasks.decoding.speculation import Draft, speculate
from tasks.storage.files import place

MODEL = ["NUM_LAYERS=6", "MODEL_DIM=384", "NUM_HEADS=6", "LEARNING_RATE=1e-3"]
DRAFT = ["NUM_LAYERS=1", "MODEL_DIM=128", "NUM_HEADS=2", "FFN_DIM=512"]


def main() -> int:
    parser = flags(__doc__)
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8], help="batch sizes")
    parser.add_argument("--tokens", type=int, nargs="+", default=[2, 4, 8], help="drafted tokens")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--new", type=int, default=256, help="new tokens")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    (session, variables), (small, drafting) = (_trained(knobs, options.updates) for knobs in (MODEL, DRAFT))
    lines = [line for rows in options.rows for line in _measured(options, session, variables, small, drafting, rows)]
    facts = {"machine": machine(), "updates of training": options.updates, "prompt": options.prompt}
    same = all(line["same tokens"] == "100.0%" for line in lines)
    show("speculation", lines, facts | {"new tokens": options.new, "turns": options.rounds}, options.publish and same)
    return int(not same)


def _trained(knobs: list[str], updates: int) -> tuple[Session, Any]:
    """Returns a session of the demo with these knobs, and its variables after training."""
    schedule = [f"NUM_STEPS={updates}", "SEQ_LEN=384", "EVAL_EVERY=none"]
    session = Session(resolve("tiny.StdlibTiny", [*knobs, *schedule]), jax.devices()[:1])
    with tempfile.TemporaryDirectory() as folder:
        workdir = open_workdir(folder, session.experiment, session.mesh_shape)
        train(session, place(workdir), TrainOptions(tensorboard=False))
        with session.placed():
            state, _ = Checkpoints(workdir, read_only=True).require(session.abstract.state, "last")
            return session, session.functions.evaluated(state)


def _measured(
    options: Any, session: Session, variables: Any, small: Session, drafting: Any, rows: int
) -> list[dict[str, Any]]:
    held_out = session.test.inputs["validation"].batch(0).inputs
    tokens = np.tile(held_out, (-(-rows // len(held_out)), 1))[:rows, : options.prompt]
    arguments = (tokens, np.ones_like(tokens), jax.random.key(0))
    choices: dict[str, Any] = {"new_tokens": options.new, "sampler": Sampler(temperature=0.0)}
    results: dict[str, Any] = {}

    def plain() -> None:
        drawn, _ = generate(session.task, variables, *arguments, **choices)
        results["none"] = (np.asarray(drawn), None)

    def drafted(number: int) -> Any:
        draft, capacity = Draft(small.task, number), options.prompt + options.new + number
        given = {**choices, "draft": draft, "capacity": capacity}

        def run() -> None:
            drawn, memory = speculate(session.task, variables, drafting, *arguments, **given)
            results[str(number)] = (np.asarray(drawn), int(memory.rounds))

        return run

    works = {"none": plain} | {str(number): drafted(number) for number in options.tokens}
    with session.placed():
        seconds = alternate(options.rounds, **works)
    lines = []
    for name, spent in seconds.items():
        drawn, rounds = results[name]
        line: dict[str, Any] = {"rows": rows, "drafted tokens": name, "tokens/s": rows * options.new / spent}
        line |= {"speedup": seconds["none"] / spent, "tokens per pass": (options.new - 1) / rounds if rounds else 1.0}
        lines.append(line | {"same tokens": f"{(drawn == results['none'][0]).mean():.1%}"})
    return lines


if __name__ == "__main__":
    sys.exit(main())
