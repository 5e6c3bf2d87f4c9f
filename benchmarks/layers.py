"""Time to compile an update of models with a pattern over layers, by the number of layers.

    python -m benchmarks.layers

Turns alternate between the numbers of layers; the compilation cache is off. JAX_PLATFORMS is cpu by default.
"""

import argparse
import statistics
import sys
from typing import Any

import jax

from benchmarks.tables import flags, machine, show, timed
from registry.resolve import resolve
from runners.session import Session

PATTERNS = {
    "none": [],
    "five local layers, one global": ["ATTENTION_WINDOW=5*64+none"],
    "every other layer with experts": ["FFN=experts+dense"],
    "three VQ layers, two of attention, one static SGU": ["MIXER=3*vq+2*attention+static_sgu", "POSITIONS=learned"],
}


def update_of(entry: str, layers: int, knobs: list[str]) -> tuple[Session, Any]:
    """Returns the session of an experiment with so many layers, and its lowered update."""
    session = Session(resolve(entry, [f"NUM_LAYERS={layers}", "DEVICE_MESH_SHAPE=1,1", "DATA=synthetic", *knobs]))
    with session.placed():
        return session, session.functions.lower_step(session.abstract.batch, session.abstract.seed)


def _measured(options: argparse.Namespace, pattern: str) -> list[dict[str, Any]]:
    times: dict[int, list[tuple[float, float]]] = {layers: [] for layers in options.layers}
    for turn in range(options.rounds + 1):
        for layers, turns in times.items():
            found: list[Any] = []
            tracing = timed(lambda n=layers, found=found: found.append(update_of(options.entry, n, PATTERNS[pattern])))
            session, lowered = found[0]
            with session.placed():
                compiling = timed(lowered.compile)
            if turn:  # the first one also imports
                turns.append((tracing, compiling))
    medians = {
        layers: [statistics.median(part) for part in zip(*turns, strict=True)] for layers, turns in times.items()
    }
    first = sum(medians[options.layers[0]])
    return [
        {
            "pattern": pattern,
            "layers": layers,
            "tracing, s": tracing,
            "compilation, s": compiling,
            f"of {options.layers[0]} layers": (tracing + compiling) / first,
        }
        for layers, (tracing, compiling) in medians.items()
    ]


def main() -> int:
    parser = flags(__doc__)
    parser.add_argument("--entry", default="tiny.StdlibTiny")
    parser.add_argument("--layers", type=int, nargs="+", default=[26, 62])
    parser.add_argument("--patterns", nargs="+", choices=PATTERNS, default=list(PATTERNS))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    jax.config.update("jax_enable_compilation_cache", False)
    lines = [line for pattern in options.patterns for line in _measured(options, pattern)]
    show("layers", lines, {"machine": machine(), "entry": options.entry, "turns": options.rounds}, options.publish)
    return 0


if __name__ == "__main__":
    sys.exit(main())
