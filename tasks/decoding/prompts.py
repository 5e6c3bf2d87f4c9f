"""Prompts of a batch: padding to one length, and the tokens at their start that all have in common."""

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from layers.errors import UsageError
from tasks.task import Task

# Shared tokens are read apart if there are as many, and in multiples, so that few lengths are compiled.
SHARED_TOKENS = 64


def pad_prompts(
    prompts: Sequence[Sequence[int]], allow_empty: bool = False, length: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns prompts of different lengths as one array, padded on the left, and a mask of real entries.

    Args:
      prompts: token ids.
      allow_empty: whether a prompt may be empty.
      length: columns of the arrays, at least as many as the longest prompt has tokens; None is its length.

    Raises:
      UsageError: a prompt is empty.
    """
    if not all(prompts) and not allow_empty:
        raise UsageError("A prompt is empty. Give at least one token.")
    length = max(map(len, prompts)) if length is None else length
    tokens = np.zeros((len(prompts), length), np.int32)
    real = np.zeros((len(prompts), length), np.int32)
    for row, prompt in enumerate(prompts):
        tokens[row, length - len(prompt) :] = prompt
        real[row, length - len(prompt) :] = 1
    return tokens, real


def shared_tokens(task: Task, prompts: Sequence[Sequence[int]], length: int | None = None) -> int:
    """Returns how many tokens at the start of all prompts are read once for all of them.

    They are a multiple of SHARED_TOKENS, at most all but the last token of the shortest prompt. 0 if they are too few,
    if there is one prompt, if the model's tokens compete for slots of experts, or if rows of `length` columns need
    padding and the model's state cannot be moved, or the padding is longer.
    """
    if len(prompts) < 2 or task.decoding_caveat() is not None:
        return 0
    first, last = (sorted(map(tuple, prompts))[at] for at in (0, -1))  # these have the fewest tokens in common
    common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False)))
    lengths = [len(prompt) for prompt in prompts]
    shared = min(common, min(lengths) - 1) // SHARED_TOKENS * SHARED_TOKENS
    padding = (max(lengths) if length is None else length) - min(lengths)
    if padding and not (padding <= shared and can_rewind(jax.eval_shape(lambda: task.init_decode_state(1, 1)))):
        return 0
    return shared


def can_rewind(state: Any) -> bool:
    """Returns whether a decoding state can be rewound and moved; those of users' models need not have the property."""
    return getattr(state, "can_rewind", False)


def take_rows(task: Task, state: Any, rows: jax.Array, capacity: int) -> Any:
    """Returns the decoding state with the rows `rows` of `state`, in that order; a row may be taken several times."""
    one, two = (jax.eval_shape(lambda count=count: task.init_decode_state(count, capacity)) for count in (1, 2))

    def take(leaf: jax.Array, one: Any, two: Any) -> jax.Array:
        differs = [before != after for before, after in zip(one.shape, two.shape, strict=True)]
        return jnp.take(leaf, rows, axis=differs.index(True)) if any(differs) else leaf

    return jax.tree.map(take, state, one, two)
