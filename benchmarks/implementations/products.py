"""Square matrix products by XLA: the peak rate of the machine, measured between the implementations' turns."""

import jax
import jax.numpy as jnp

from benchmarks.implementations.work import Gpt2Size, Trainer

SIZE = 4096
FLOPS = 2 * SIZE**3  # of one product


def trainer(size: Gpt2Size, weights: str, options: set[str]) -> Trainer:
    """Returns a trainer that computes a product per update; its loss is 0."""
    del size, weights, options
    a, product = jax.random.normal(jax.random.key(0), (SIZE, SIZE)), jax.jit(jnp.matmul)

    def run(updates: int) -> float:
        jax.block_until_ready([product(a, a) for _ in range(updates)])
        return 0.0

    return run
