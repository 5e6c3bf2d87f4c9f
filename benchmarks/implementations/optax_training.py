"""The update shared by all JAX implementations: clipping by norm and AdamW of optax, in one jitted program."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import optax

from benchmarks.implementations.work import BETAS, CLIP_NORM, EPSILON, LEARNING_RATE, WEIGHT_DECAY, Trainer


def trainer_of(loss: Callable[[Any], jax.Array], params: Any, decayed: Any) -> Trainer:
    """Returns a trainer of `params`; `decayed` masks those with weight decay."""
    adamw = optax.adamw(LEARNING_RATE, *BETAS, EPSILON, weight_decay=WEIGHT_DECAY, mask=decayed)
    optimizer = optax.chain(optax.clip_by_global_norm(CLIP_NORM), adamw)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def update(params: Any, slots: Any) -> tuple[Any, Any, jax.Array]:
        value, gradient = jax.value_and_grad(loss)(params)
        updates, slots = optimizer.update(gradient, slots, params)
        return optax.apply_updates(params, updates), slots, value

    state: list[Any] = [params, optimizer.init(params)]

    def run(updates: int) -> float:
        value: Any = float("nan")
        for _ in range(updates):
            state[0], state[1], value = update(*state)
        jax.block_until_ready(state)
        return float(value)

    return run
