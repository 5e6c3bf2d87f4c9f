"""Text generation: one pass over the prompt, then token by token from the cached state, in one compiled program."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.experimental import multihost_utils

from tasks.decoding.prompts import can_rewind, take_rows
from tasks.decoding.sampler import Sampler
from tasks.task import Task

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


def read_prompts(
    task: Task,
    variables: Any,
    tokens: jax.Array,
    real: jax.Array,
    memory: Memory | None,
    capacity: int,
    shared: int = 0,
    copies: int = 1,
) -> tuple[jax.Array, Any, jax.Array]:
    """Reads the prompts after the tokens of `memory`, in room for `capacity` positions.

    Args:
      task, variables, tokens, real, memory, shared, copies: as in `generate`.
      capacity: positions that the state has room for.

    Returns:
      next-token logits (B copies, V), the state, and the position of each row's last token, (B copies,).
    """
    tokens, real, positions = _to_read(tokens, real, memory)
    rows = tokens.shape[0]
    if shared:
        state = _read_shared(task, variables, tokens, real, capacity, shared)
        tokens, real, positions = tokens[:, shared:], jnp.ones_like(tokens[:, shared:]), positions[:, shared:]
    else:
        state = task.init_decode_state(rows, capacity)
        state = state if memory is None else unpack(memory, state)
    logits, state = task.decode_step(variables, tokens, state, real, positions)
    last = positions[:, -1]
    if copies > 1:
        repeated = jnp.repeat(jnp.arange(rows), copies)
        logits, last, state = logits[repeated], last[repeated], take_rows(task, state, repeated, capacity)
    return logits, state, last


def _read_shared(task: Task, variables: Any, tokens: jax.Array, real: jax.Array, capacity: int, shared: int) -> Any:
    """Returns the state of all rows after their first `shared` columns, from one pass over the tokens they share."""
    padding = tokens.shape[1] - jnp.sum(real, axis=1)
    start = jax.lax.dynamic_slice_in_dim(tokens[:1], padding[0], shared, axis=1)
    _, state = task.decode_step(
        variables, start, task.init_decode_state(1, capacity), jnp.ones_like(start), jnp.arange(shared)[None]
    )
    state: Any = take_rows(task, state, jnp.zeros(tokens.shape[0], jnp.int32), capacity)
    return state.moved(padding) if can_rewind(state) else state  # without padding, if it cannot move


def counted(counts: jax.Array | None, token: jax.Array) -> jax.Array | None:
    """Returns the counts with `token` (B,) added; None if tokens are not counted."""
    return None if counts is None else counts.at[jnp.arange(token.shape[0]), token].add(1)


def is_stop(token: jax.Array, stop_ids: tuple[int, ...]) -> jax.Array:
    """Returns which tokens (B,) end a row."""
    return jnp.isin(token, jnp.array(stop_ids, jnp.int32))


def fill_of(stop_ids: tuple[int, ...]) -> int:
    """Returns the token of places in which nothing was drawn, because all rows had stopped."""
    return stop_ids[0] if stop_ids else 0


def last_drawn(drawn: jax.Array, step: jax.Array) -> jax.Array:
    """Returns the last of the first `step` tokens of each row, (B,)."""
    return jax.lax.dynamic_slice_in_dim(drawn, step - 1, 1, axis=1)[:, 0]


def with_first_token(
    logits: jax.Array, rng: jax.Array, sampler: Sampler, memory: Memory | None, fill: int, columns: int
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Draws the first token after the prompts.

    Returns:
      the number of tokens drawn before this call, the drawn tokens (B, columns), all but the first one `fill`, and how
      often each token was drawn, None if the sampler does not need it.
    """
    before = jnp.int32(0) if memory is None else memory.drawn
    counts = None if memory is None else memory.counts_bv
    if counts is None and sampler.repetition_penalty != 1:
        counts = jnp.zeros(logits.shape, jnp.int32)
    first = sampler(logits, jax.random.fold_in(rng, before), counts).astype(jnp.int32)
    drawn = jnp.full((len(first), columns), fill, jnp.int32).at[:, 0].set(first)
    return before, drawn, counted(counts, first)


def for_the_loop(task: Task, variables: Any, state: Any, new_tokens: int) -> tuple[Any, Any, Callable[[Any], Any]]:
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
    shared: int = 0,
    copies: int = 1,
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
      shared: tokens at the start of all prompts that are read once (tasks.decoding.prompts.shared_tokens); 0 with a
        memory.
      copies: continuations of each prompt, which is read once; 1 with a memory.

    Returns:
      int32 (B copies, new_tokens), and the memory to continue from.
    """
    if capacity is None:
        capacity = tokens.shape[1] + new_tokens + (memory is not None)
    logits, state, end = read_prompts(task, variables, tokens, real, memory, capacity, shared, copies)
    before, drawn, counts = with_first_token(logits, rng, sampler, memory, fill_of(stop_ids), new_tokens)

    def unfinished(carry):
        step, *_, stopped = carry
        return (step < new_tokens) & ~jnp.all(stopped)

    def body(carry):
        step, drawn, state, counts, stopped = carry
        last = last_drawn(drawn, step)
        read = last[:, None]
        logits, state = task.decode_step(variables, read, state, jnp.ones_like(read), end[:, None] + step)
        token = sampler(logits, jax.random.fold_in(rng, before + step), counts).astype(jnp.int32)
        token = jnp.where(stopped, last, token)
        stopped |= is_stop(token, stop_ids)
        return step + 1, drawn.at[:, step].set(token), state, counted(counts, token), stopped

    variables, state, stored = for_the_loop(task, variables, state, new_tokens)
    carry = (jnp.int32(1), drawn, state, counts, is_stop(drawn[:, 0], stop_ids))
    steps, drawn, state, counts, _ = jax.lax.while_loop(unfinished, body, carry)
    return drawn, Memory(stored(state), last_drawn(drawn, steps), end + steps, before + steps, counts)


_STATIC = ("task", "new_tokens", "sampler", "stop_ids", "capacity", "shared", "copies")
generate = jax.jit(_generate, static_argnames=_STATIC)
generate_in_place = jax.jit(_generate, static_argnames=_STATIC, donate_argnames=("memory",))
"""Like `generate`, but donates `memory`."""


def generate_in_chunks(
    run: Callable[[Any, np.ndarray | jax.Array, np.ndarray | jax.Array, int, Any], tuple[jax.Array, Any]],
    tokens: np.ndarray | jax.Array,
    real: np.ndarray | jax.Array,
    memory: Any,
    sizes: Sequence[int],
    functions: tuple[Any, Any] = (generate, generate_in_place),
) -> Iterator[tuple[np.ndarray, Any]]:
    """Yields chunks of new tokens, int32 (B, size), in all processes, each with the memory after it.

    Args:
      run: calls `(function, tokens, real, size, memory)`, where the function is the first of `functions` for the first
        chunk and the second for the others, and returns its result.
      tokens: int32 (B, S), prompts padded on the left.
      real: int32 (B, S), 1 where `tokens` is prompt.
      memory: state to continue from.
      sizes: new tokens of each chunk.
      functions: `generate` and `generate_in_place`, or those of tasks.decoding.speculation.
    """
    function, in_place = functions
    for size in sizes:
        drawn, memory = run(function, tokens, real, size, memory)
        if not drawn.is_fully_addressable:
            drawn = multihost_utils.process_allgather(drawn, tiled=True)
        yield np.asarray(drawn), memory
        tokens = real = np.zeros((drawn.shape[0], 0), np.int32)
        function = in_place  # donates the memory, which this loop owns after the first chunk


def chunk_sizes(new_tokens: int, chunk: int) -> list[int]:
    """Returns the sizes of chunks of at most `chunk` tokens, `new_tokens` in total."""
    return [min(chunk, new_tokens - start) for start in range(0, new_tokens, chunk)]
