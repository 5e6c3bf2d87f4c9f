"""Small experiments that tests vary by knobs."""

import functools
from typing import Any

import jax
import numpy as np
from flax.core import meta

from registry.build import build
from registry.templates.decoder import DecoderLm
from tasks.batch import Batch, empty_batch
from tasks.language_model_task import LanguageModelTask
from tasks.train_step import TrainState, init_state, train_step


class Small(DecoderLm):
    """Two layers, 16 wide, on synthetic packed rows."""

    NUM_LAYERS = 2
    MODEL_DIM = 16
    NUM_HEADS = 4
    FFN_DIM = 32
    VOCAB_SIZE = 32
    SEQ_LEN = 16
    BATCH_SIZE = 8
    DATA = "synthetic"
    WARMUP_STEPS = 2
    NUM_STEPS = 20
    LOG_EVERY = 5


def task_of(**knobs: Any) -> LanguageModelTask:
    """The built task of `Small` with these knobs."""
    return build(Small.derive(**knobs)().Task(), "task")


def batch_of(index: int = 0, **knobs: Any) -> Batch:
    """Batch `index` of the training input of `Small` with these knobs."""
    return build(Small.derive(**knobs)().Train(), "train").input.batch(index)


def variables_of(task: LanguageModelTask, seed: int = 0) -> Any:
    """Initial variables without boxes."""
    return meta.unbox(jax.jit(task.init)(jax.random.key(seed), empty_batch(1, 1)))


def train_losses(steps: int, **knobs: Any) -> tuple[list[float], TrainState]:
    """Loss of each of the first updates, and the state after them."""
    task = task_of(**knobs)
    state = jax.jit(lambda key: init_state(task, key, empty_batch(1, 1)))(jax.random.key(0))
    update = jax.jit(functools.partial(train_step, task, log_every=1))
    losses = []
    for index in range(steps):
        state = update(state, batch_of(index, **knobs), jax.random.key(0))
        losses.append(float(state.sums.loss / state.sums.weight))
    return losses, state


def same(a: Any, b: Any) -> bool:
    """Whether two trees hold the same bits."""
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
