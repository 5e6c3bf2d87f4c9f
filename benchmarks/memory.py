"""Time and memory of cross-entropy and its gradients over large vocabularies, computed at once or in chunks.

    python -m benchmarks.memory

"pieces, twice" recomputes the logits of each chunk in the backward pass with jax.checkpoint.
"""

import argparse
import sys
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.tables import alternate, flags, machine, show
from layers.cross_entropy import chunked_cross_entropy, cross_entropy_sums


def recomputed_chunks(features: Any, head: Any, targets: Any, weights: Any, chunk: int) -> Any:
    """Returns the loss in chunks, whose logits the backward pass recomputes."""
    split = lambda x: jnp.moveaxis(x.reshape(x.shape[0], -1, chunk, *x.shape[2:]), 1, 0)

    @jax.checkpoint
    def chunk_loss(features: Any, targets: Any, weights: Any) -> Any:
        return cross_entropy_sums(features @ head, targets, weights).objective

    add = lambda total, xs: (total + chunk_loss(*xs), None)
    return jax.lax.scan(add, jnp.float32(0), (split(features), split(targets), split(weights)))[0]


def _measured(options: argparse.Namespace, vocabulary: int) -> list[dict[str, Any]]:
    keys = jax.random.split(jax.random.key(0), 3)
    features = jax.random.normal(keys[0], (1, options.positions, options.width))
    head = jax.random.normal(keys[1], (options.width, vocabulary)) * options.width**-0.5
    targets = jax.random.randint(keys[2], (1, options.positions), 0, vocabulary)
    weights = jnp.ones(targets.shape)
    in_chunks = lambda f, h, chunk: chunked_cross_entropy(f, lambda x: x @ h, targets, weights, chunk).objective
    losses: dict[str, Any] = {
        "one piece": lambda f, h: in_chunks(f, h, None),
        "pieces": lambda f, h: in_chunks(f, h, options.chunk),
        "pieces, twice": lambda f, h: recomputed_chunks(f, h, targets, weights, options.chunk),
    }
    compiled = {
        name: jax.jit(jax.value_and_grad(loss, argnums=(0, 1))).lower(features, head).compile()
        for name, loss in losses.items()
    }
    works = {name: (lambda c=c: jax.block_until_ready(c(features, head))) for name, c in compiled.items()}
    seconds, lines = alternate(options.rounds, **works), []
    for name in losses:
        memory: Any = compiled[name].memory_analysis()
        line = {"tokens in vocabulary": vocabulary, "loss": name, "seconds": seconds[name]}
        lines.append(
            line
            | {
                "of one piece": seconds[name] / seconds["one piece"],
                "MiB of temporaries": memory.temp_size_in_bytes / 2**20,
            }
        )
    return lines


def main() -> int:
    parser = flags(__doc__)
    parser.add_argument("--vocabularies", type=int, nargs="+", default=[32_768, 131_072])
    parser.add_argument("--positions", type=int, default=1024)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--chunk", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    lines = [line for vocabulary in options.vocabularies for line in _measured(options, vocabulary)]
    facts: dict[str, Any] = {"machine": machine(), "positions": options.positions, "width": options.width}
    show(
        "cross-entropy",
        lines,
        facts | {"positions of a piece": options.chunk, "turns": options.rounds},
        options.publish,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
