"""Speculative decoding: a small model drafts tokens, which the model reads together and accepts or rejects."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from tasks.decoding.generation import (
    Memory,
    counted,
    fill_of,
    for_the_loop,
    is_stop,
    last_drawn,
    read_prompts,
    with_first_token,
)
from tasks.decoding.prompts import can_rewind
from tasks.decoding.sampler import Sampler
from tasks.task import Task


@dataclasses.dataclass(frozen=True)
class Draft:
    """A small model of the same vocabulary, and the number of tokens that it drafts at once."""

    task: Task
    tokens: int


class SpeculativeMemory(Memory):
    """Decoding state of both models, from which a later call continues."""

    draft_state: Any = None  # that of the draft, after the same tokens
    rounds: jax.Array | None = None  # int32: passes of the model over drafted tokens so far


class _Round(struct.PyTreeNode):
    """State of the loop before a round."""

    step: jax.Array  # tokens drawn in this call
    drawn: jax.Array  # int32 (B, new_tokens + drafted tokens + 1)
    state: Any
    draft_state: Any
    counts: jax.Array | None
    stopped: jax.Array  # bool (B,)
    rounds: jax.Array


def _speculate(
    task: Task,
    variables: Any,
    draft_variables: Any,
    tokens: jax.Array,
    real: jax.Array,
    rng: jax.Array,
    *,
    draft: Draft,
    new_tokens: int,
    sampler: Sampler,
    stop_ids: tuple[int, ...] = (),
    memory: SpeculativeMemory | None = None,
    capacity: int,
    shared: int = 0,
    copies: int = 1,
) -> tuple[jax.Array, SpeculativeMemory]:
    """Continues each prompt by `new_tokens` tokens with the distribution of `generate`; greedy ones are the same.

    Up to rounding: a pass over several tokens computes other sums than passes over single ones.

    In each round the draft draws `draft.tokens` tokens one by one, and the model reads them in one pass. A token d is
    accepted with probability min(1, p(d) / q(d)), for the model's probability p and the draft's q; the first rejected
    one is drawn from max(0, p - q), normalized (Leviathan et al. 2023, algorithm 1). All rows advance by the tokens of
    the row with the fewest accepted ones.

    Args:
      draft_variables: those of the draft, on all devices.
      draft: the draft.
      capacity: positions of both states, at least `draft.tokens` more than are read.
      task, variables, tokens, real, rng, new_tokens, sampler, stop_ids, memory, shared, copies: as in `generate`.
    """
    prompts = (tokens, real)
    logits, state, end = read_prompts(task, variables, *prompts, memory, capacity, shared, copies)
    past = None if memory is None else memory.replace(state=memory.draft_state)
    with _unplaced():
        _, draft_state, _ = read_prompts(draft.task, draft_variables, *prompts, past, capacity, shared, copies)
    columns, fill = new_tokens + draft.tokens + 1, fill_of(stop_ids)
    before, drawn, counts = with_first_token(logits, rng, sampler, memory, fill, columns)
    variables, state, stored = for_the_loop(task, variables, state, new_tokens)
    draft_variables, draft_state, draft_stored = for_the_loop(draft.task, draft_variables, draft_state, new_tokens)
    loop = _Loop(task, draft, sampler, stop_ids, new_tokens, logits.shape[-1], end, fill)

    def body(carry: _Round) -> _Round:
        key = jax.random.fold_in(rng, before + carry.step)
        return loop.round(carry, variables, draft_variables, key)

    rounds = jnp.int32(0) if memory is None or memory.rounds is None else memory.rounds
    start = _Round(jnp.int32(1), drawn, state, draft_state, counts, is_stop(drawn[:, 0], stop_ids), rounds)
    after: _Round = jax.lax.while_loop(lambda c: (c.step < new_tokens) & ~jnp.all(c.stopped), body, start)
    left = SpeculativeMemory(
        state=stored(after.state),
        unread_b=last_drawn(after.drawn, after.step),
        position_b=end + after.step,
        drawn=before + after.step,
        counts_bv=after.counts,
        draft_state=draft_stored(after.draft_state),
        rounds=after.rounds,
    )
    return after.drawn[:, :new_tokens], left


_STATIC = ("task", "draft", "new_tokens", "sampler", "stop_ids", "capacity", "shared", "copies")
speculate = jax.jit(_speculate, static_argnames=_STATIC)
speculate_in_place = jax.jit(_speculate, static_argnames=_STATIC, donate_argnames=("memory",))
"""Like `speculate`, but donates `memory`."""


@dataclasses.dataclass(frozen=True)
class _Loop:
    """The rounds of one call."""

    task: Task
    draft: Draft
    sampler: Sampler
    stop_ids: tuple[int, ...]
    new_tokens: int
    vocab_size: int
    end_b: jax.Array  # positions of the rows' last prompt tokens
    fill: int  # what `drawn` holds where nothing was drawn

    def round(self, carry: _Round, variables: Any, draft_variables: Any, key: jax.Array) -> _Round:
        """Drafts, reads and accepts tokens, at least one."""
        number = self.draft.tokens
        keys = jax.random.split(key, 3)
        last = last_drawn(carry.drawn, carry.step)
        # Tokens beyond the last one are drafted, but not accepted: their positions may not exist.
        ahead = jnp.minimum(carry.step + jnp.arange(number + 1), self.new_tokens - 1)
        positions = self.end_b[:, None] + ahead
        drafted, draft_p, draft_after = self._drafted(carry, draft_variables, last, positions, keys[0])
        # A row that has stopped reads its stop token again, as without a draft.
        drafted = jnp.where(carry.stopped[:, None], last[:, None], drafted)
        read = jnp.concatenate([last[:, None], drafted], axis=1)
        logits, after = self.task.decode_step(
            variables, read, carry.state, jnp.ones_like(read), positions, last_only=False
        )
        p = self._probabilities(logits, carry.counts, drafted)
        row_p, row_q = (_of(values[:, :number], drafted) for values in (p, draft_p))
        is_accepted = jax.random.uniform(keys[1], row_p.shape) * row_q < row_p
        accepted_b = jnp.sum(jnp.cumprod(is_accepted, axis=1), axis=1)
        count = jnp.min(jnp.where(carry.stopped, number, accepted_b))
        count = jnp.minimum(count, self.new_tokens - carry.step - 1)  # accepted tokens; one more is drawn
        rest = jnp.take(p, count, axis=1) - jnp.take(jnp.pad(draft_p, ((0, 0), (0, 1), (0, 0))), count, axis=1)
        replaced = jax.random.categorical(keys[2], jnp.log(jnp.maximum(rest, 0))).astype(jnp.int32)
        proposed = jnp.take(jnp.pad(drafted, ((0, 0), (0, 1))), count, axis=1)
        token = jnp.where(accepted_b > count, proposed, replaced)
        chosen = jnp.where(jnp.arange(number) < count, drafted, token[:, None])
        chosen = jnp.concatenate([chosen, token[:, None]], axis=1)
        new, counts, stopped = self._ended(chosen, count, last, carry)
        keep = lambda task, variables, before, after: _kept(task, variables, before, after, read, positions, count)
        state = keep(self.task, variables, carry.state, after)
        with _unplaced():
            draft_state = keep(self.draft.task, draft_variables, carry.draft_state, draft_after)
        drawn = jax.lax.dynamic_update_slice_in_dim(carry.drawn, new, carry.step, axis=1)
        return _Round(carry.step + count + 1, drawn, state, draft_state, counts, stopped, carry.rounds + 1)

    def _drafted(
        self, carry: _Round, variables: Any, last: jax.Array, positions: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, jax.Array, Any]:
        """Returns the drafted tokens (B, K), the draft's probabilities (B, K, V), and its state after all tokens."""

        def one(before: Any, inputs: Any) -> tuple[Any, Any]:
            token, state, counts = before
            position, key = inputs
            logits, state = self.draft.task.decode_step(
                variables, token[:, None], state, jnp.ones_like(token)[:, None], position[:, None]
            )
            p = self.sampler.probabilities(self._same_rows(logits), counts)
            token = jax.random.categorical(key, jnp.log(p)).astype(jnp.int32)
            return (token, state, counted(counts, token)), (token, p)

        keys = jax.random.split(key, positions.shape[1])
        with _unplaced():
            after, (tokens, p) = jax.lax.scan(one, (last, carry.draft_state, carry.counts), (positions.T, keys))
        return tokens[:-1].T, jnp.moveaxis(p[:-1], 0, 1), after[1]  # the last step reads the last drafted token

    def _same_rows(self, logits: jax.Array) -> jax.Array:
        """Returns the draft's logits for the rows of the model's embedding, which may have more rows of padding."""
        missing = max(0, self.vocab_size - logits.shape[-1])
        return jnp.pad(logits[:, : self.vocab_size], ((0, 0), (0, missing)), constant_values=-jnp.inf)

    def _probabilities(self, logits: jax.Array, counts: jax.Array | None, drafted: jax.Array) -> jax.Array:
        """Returns the model's probabilities after the last token and after each drafted one, (B, K + 1, V)."""
        found = []
        for i in range(logits.shape[1]):
            found.append(self.sampler.probabilities(logits[:, i], counts))
            counts = counted(counts, drafted[:, i]) if i < drafted.shape[1] else counts
        return jnp.stack(found, axis=1)

    def _ended(
        self, chosen: jax.Array, count: jax.Array, last: jax.Array, carry: _Round
    ) -> tuple[jax.Array, jax.Array | None, jax.Array]:
        """Returns the new tokens, filled after a stop token, the counts with them, and which rows have stopped."""
        stopped, counts, new = carry.stopped, carry.counts, []
        for i in range(chosen.shape[1]):
            is_new = i <= count
            last = jnp.where(stopped, last, chosen[:, i])
            new.append(jnp.where(is_new, last, self.fill))
            stopped = stopped | (is_new & is_stop(last, self.stop_ids))
            if counts is not None:
                counts = counts.at[jnp.arange(len(last)), last].add(jnp.where(is_new, 1, 0))
        return jnp.stack(new, axis=1), counts, stopped


def _kept(
    task: Task,
    variables: Any,
    before: Any,
    after: Any,
    read: jax.Array,
    positions: jax.Array,
    count: jax.Array,
) -> Any:
    """Returns the state after the first `count + 1` of the tokens `read` (B, K + 1).

    States that keep all positions are rewound. Others, such as those of windows and of Transformer-VQ, read the tokens
    again, unless all were accepted.
    """
    number = read.shape[1] - 1
    if can_rewind(after):
        return after.rewound(number - count)

    def again(length: int) -> Any:
        tokens = read[:, :length]
        return task.decode_step(variables, tokens, before, jnp.ones_like(tokens), positions[:, :length])[1]

    branches = [lambda length=length: again(length) for length in range(1, number + 1)]
    return jax.lax.switch(count, [*branches, lambda: after])


def _of(values: jax.Array, tokens: jax.Array) -> jax.Array:
    """Returns the values (B, K, V) of the tokens (B, K)."""
    return jnp.take_along_axis(values, tokens[..., None], axis=-1)[..., 0]


def _unplaced() -> Any:
    """Computes without partition specs: the draft is on all devices."""
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ()))
