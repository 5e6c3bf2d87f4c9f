"""Text generation: one pass over the prompt, then token by token from the cached state, in one compiled program."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.experimental import multihost_utils

from layers.errors import UsageError
from tasks.decoding.sampler import Sampler
from tasks.task import Task


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


# Number of new tokens from which the loop unstacks the layers; for fewer, the copy of the weights does not pay off.
APART_TOKENS = 32


class Memory(struct.PyTreeNode):
    """Decoding state of a batch of rows, from which a later call continues."""

    state: Any  # the model's state after all tokens but the last
    unread_b: jax.Array  # int32 (B,): the last token, not yet read by the model
    position_b: jax.Array  # int32 (B,): position of the last token
    drawn: jax.Array  # int32: number of tokens drawn so far, which selects the random numbers
    counts_bv: jax.Array | None = None  # how often each token was drawn, if the sampler penalises repetition


def unpack(memory: Memory, empty: Any) -> Any:
    """Returns the memory's state copied into `empty`, which may have capacity for more positions."""

    def fill(room: jax.Array, saved: jax.Array) -> jax.Array:
        if room.shape == saved.shape:
            return jnp.asarray(saved, room.dtype)
        return jax.lax.dynamic_update_slice(room, jnp.asarray(saved, room.dtype), (0,) * room.ndim)

    return jax.tree.map(fill, empty, memory.state)


def _to_read(tokens: jax.Array, real: jax.Array, memory: Memory | None) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the tokens to read (the memory's unread token, then the prompt), their mask and their positions."""
    if memory is None:
        return tokens, real, jnp.maximum(jnp.cumsum(real, axis=1) - 1, 0)
    tokens = jnp.concatenate([memory.unread_b[:, None], tokens], axis=1)
    return tokens, jnp.ones_like(tokens), memory.position_b[:, None] + jnp.arange(tokens.shape[1])


def _read_prompts(
    task: Task,
    variables: Any,
    tokens: jax.Array,
    real: jax.Array,
    memory: Memory | None,
    capacity: int | None,
    new_tokens: int,
) -> tuple[jax.Array, Any, jax.Array]:
    """Reads the prompts after the tokens of `memory`; returns next-token logits (B, V), state and positions (B, S)."""
    tokens, real, positions = _to_read(tokens, real, memory)
    state = task.init_decode_state(tokens.shape[0], tokens.shape[1] + new_tokens if capacity is None else capacity)
    state = state if memory is None else unpack(memory, state)
    logits, state = task.decode_step(variables, tokens, state, real, positions)
    return logits, state, positions


def _counted(counts: jax.Array | None, token: jax.Array) -> jax.Array | None:
    """Returns the counts with `token` (B,) added; None if tokens are not counted."""
    return None if counts is None else counts.at[jnp.arange(token.shape[0]), token].add(1)


def _is_stop(token: jax.Array, stop_ids: tuple[int, ...]) -> jax.Array:
    return jnp.isin(token, jnp.array(stop_ids, jnp.int32))


def _for_the_loop(task: Task, variables: Any, state: Any, new_tokens: int) -> tuple[Any, Any, Callable[[Any], Any]]:
    """Returns variables and state in the layout of the token loop, and a function that restores the stored layout."""
    if new_tokens < APART_TOKENS:
        return variables, state, lambda state: state
    return *task.unstack(variables, state), lambda state: state.stacked()


def _generate(
    task: Task,
    variables: Any,
    tokens: jax.Array,
    real: jax.Array,
    rng: jax.Array,
    *,
    new_tokens: int,
    sampler: Sampler,
    stop_ids: tuple[int, ...] = (),
    memory: Memory | None = None,
    capacity: int | None = None,
) -> tuple[jax.Array, Memory]:
    """Continues each prompt by `new_tokens` tokens.

    Args:
      task: provides `decode_step` and `init_decode_state`.
      variables: the model's variables.
      tokens: int32 (B, S), prompts padded on the left.
      real: int32 (B, S), 1 where `tokens` is prompt and 0 where it is padding.
      rng: key for sampling.
      new_tokens: number of tokens to generate.
      sampler: draws tokens from logits.
      stop_ids: a row that has drawn one of them is filled with it (after the end of the loop, with the first of
        them); the loop ends when all rows have drawn one.
      memory: state to continue from; prompts must then be without padding, and may be empty.
      capacity: positions of the state, those in `memory` included; None is the number read in this call.

    Returns:
      int32 (B, new_tokens), and the memory to continue from.
    """
    rows = tokens.shape[0]
    before = jnp.int32(0) if memory is None else memory.drawn
    logits, state, positions = _read_prompts(task, variables, tokens, real, memory, capacity, new_tokens)
    counts = None if memory is None else memory.counts_bv
    if counts is None and sampler.repetition_penalty != 1:
        counts = jnp.zeros(logits.shape, jnp.int32)
    first = sampler(logits, jax.random.fold_in(rng, before), counts).astype(jnp.int32)
    drawn = jnp.full((rows, new_tokens), stop_ids[0] if stop_ids else 0, jnp.int32).at[:, 0].set(first)

    def unfinished(carry):
        step, *_, stopped = carry
        return (step < new_tokens) & ~jnp.all(stopped)

    def body(carry):
        step, drawn, state, counts, stopped = carry
        last = jax.lax.dynamic_slice_in_dim(drawn, step - 1, 1, axis=1)
        logits, state = task.decode_step(variables, last, state, jnp.ones_like(last), positions[:, -1:] + step)
        token = sampler(logits, jax.random.fold_in(rng, before + step), counts).astype(jnp.int32)
        token = jnp.where(stopped, last[:, 0], token)
        stopped |= _is_stop(token, stop_ids)
        return step + 1, drawn.at[:, step].set(token), state, _counted(counts, token), stopped

    variables, state, stored = _for_the_loop(task, variables, state, new_tokens)
    carry = (jnp.int32(1), drawn, state, _counted(counts, first), _is_stop(first, stop_ids))
    steps, drawn, state, counts, _ = jax.lax.while_loop(unfinished, body, carry)
    last = jax.lax.dynamic_slice_in_dim(drawn, steps - 1, 1, axis=1)[:, 0]
    return drawn, Memory(stored(state), last, positions[:, -1] + steps, before + steps, counts)


_STATIC = ("task", "new_tokens", "sampler", "stop_ids", "capacity")
generate = jax.jit(_generate, static_argnames=_STATIC)
generate_in_place = jax.jit(_generate, static_argnames=_STATIC, donate_argnames=("memory",))
"""Like `generate`, but donates `memory`."""


def generate_in_chunks(
    run: Callable[[Any, np.ndarray | jax.Array, np.ndarray | jax.Array, int, Memory | None], tuple[jax.Array, Memory]],
    tokens: np.ndarray | jax.Array,
    real: np.ndarray | jax.Array,
    memory: Memory | None,
    sizes: Sequence[int],
) -> Iterator[tuple[np.ndarray, Memory]]:
    """Yields chunks of new tokens, int32 (B, size), in all processes, each with the memory after it.

    Args:
      run: calls `(function, tokens, real, size, memory)`, where the function is `generate` for the first chunk and
        `generate_in_place` for the others, and returns its result.
      tokens: int32 (B, S), prompts padded on the left.
      real: int32 (B, S), 1 where `tokens` is prompt.
      memory: state to continue from.
      sizes: new tokens of each chunk.
    """
    function = generate
    for size in sizes:
        drawn, memory = run(function, tokens, real, size, memory)
        if not drawn.is_fully_addressable:
            drawn = multihost_utils.process_allgather(drawn, tiled=True)
        yield np.asarray(drawn), memory
        tokens = real = np.zeros((tokens.shape[0], 0), np.int32)
        function = generate_in_place  # donates the memory, which this loop owns after the first chunk


def chunk_sizes(new_tokens: int, chunk: int) -> list[int]:
    """Returns the sizes of chunks of at most `chunk` tokens, `new_tokens` in total."""
    return [min(chunk, new_tokens - start) for start in range(0, new_tokens, chunk)]
