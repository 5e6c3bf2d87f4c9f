"""Log-probabilities of token sequences, in batches packed by length."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from runners.evals.packing import PackedBatch, counted
from runners.evals.placement import Placement, Reminder, one_ahead
from runners.session import Session
from tasks.batch import Batch

MOST_CANDIDATES = 8  # last tokens of sequences that are otherwise equal, scored in one row


@dataclasses.dataclass(frozen=True)
class SequenceScore:
    """Scores of the tokens of a sequence that follow its first one."""

    log_p: np.ndarray  # float32 (N - 1,): log-probability of each token after those before it, in nats
    is_likeliest: np.ndarray  # bool (N - 1,): whether no token is likelier


@dataclasses.dataclass(frozen=True)
class _Row:
    """Sequences that differ only in their last token."""

    inputs: tuple[int, ...]  # what the model reads: all tokens but the last
    last: tuple[int, ...]  # the last token of each sequence


class Scorer:
    """Scores sequences of tokens with a session's model. Equal inputs are computed once.

    Args:
      session: the session.
      placement: the shapes of batches.
      report: prints a line on a long computation.
    """

    def __init__(self, session: Session, placement: Placement, report: Callable[[str], None] = print):
        self._session, self._placement, self._report = session, placement, report
        self._batches, self._shapes = 0, set[tuple[int, int, int]]()  # shapes: rows, positions, candidates

    def count(self) -> str:
        """Returns the number of batches and shapes since the last call, in words."""
        words = counted(self._batches, self._shapes)
        self._batches, self._shapes = 0, set()
        return words

    def __call__(self, variables: Any, sequences: Sequence[Sequence[int]]) -> list[SequenceScore]:
        """Returns the scores of sequences of at least two tokens, in order; called by all processes with the same."""
        last: dict[tuple[int, ...], dict[int, None]] = {}
        for sequence in sequences:
            *inputs, end = sequence
            last.setdefault(tuple(inputs), {})[end] = None
        rows = [
            _Row(inputs, tuple(ends)[start : start + MOST_CANDIDATES])
            for inputs, ends in last.items()
            for start in range(0, len(ends), MOST_CANDIDATES)
        ]
        scores: dict[tuple[int, ...], SequenceScore] = {}
        for row, found in self._scores(variables, rows):
            scores |= {(*row.inputs, end): score for end, score in zip(row.last, found, strict=True)}
        return [scores[tuple(sequence)] for sequence in sequences]

    def _scores(self, variables: Any, rows: Sequence[_Row]) -> Iterator[tuple[_Row, list[SequenceScore]]]:
        candidates = 1 << (max((len(row.last) for row in rows), default=1) - 1).bit_length()
        batches = self._placement.packer.batches([len(row.inputs) for row in rows])
        computed = ((batch, self._computed(variables, rows, batch, candidates)) for batch in batches)
        reminder = Reminder(self._report, len(rows), "Scored")
        for batch, (log_p, likeliest) in one_ahead(computed, self._session.settle):
            reminder.add(len(batch.numbers))
            for place, number in enumerate(batch.numbers):
                yield rows[number], _sequence_scores(rows[number], log_p[place], likeliest[place])

    def _computed(self, variables: Any, rows: Sequence[_Row], batch: PackedBatch, candidates: int) -> Any:
        """Returns log-probabilities (B, S, T) and likeliest tokens (B, S) of a batch, still on the devices."""
        inputs, tokens = _padded([rows[number] for number in batch.numbers], batch, candidates)
        lengths = np.zeros((batch.rows, 1), int)
        lengths[: len(batch.numbers), 0] = [len(rows[number].inputs) for number in batch.numbers]
        weights = np.zeros((batch.rows, batch.length), np.float32)
        given = Batch(inputs, inputs, weights, is_token=np.arange(batch.length) < lengths)
        self._batches += 1
        self._shapes.add((batch.rows, batch.length, candidates))
        put, chunk = self._placement.put, self._placement.logits_chunk(batch)
        return self._score(variables, put(given), tuple(put(tokens[..., t]) for t in range(candidates)), chunk)

    @functools.cached_property
    def _score(self) -> Any:
        """The jitted function `(variables, batch, candidates, chunk)`; candidates is a tuple of arrays (B, S)."""

        def score(variables: Any, batch: Batch, candidates: Sequence[jax.Array], chunk: int) -> Any:
            tokens = jax.numpy.stack(candidates, axis=-1)
            scores = self._session.task.token_scores(variables, batch, tokens, chunk)
            return scores.log_p_bst, scores.likeliest_bs

        return jax.jit(score, static_argnums=3, out_shardings=self._placement.copied)


def _padded(rows: Sequence[_Row], batch: PackedBatch, candidates: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs (B, S), padded on the right with zeros, and the tokens to score (B, S, T)."""
    inputs = np.zeros((batch.rows, batch.length), np.int32)
    tokens = np.zeros((batch.rows, batch.length, candidates), np.int32)
    for place, row in enumerate(rows):
        length = len(row.inputs)
        inputs[place, :length] = row.inputs
        tokens[place, : length - 1] = np.array(row.inputs[1:], np.int32)[:, None]
        tokens[place, length - 1, : len(row.last)] = row.last
    return inputs, tokens


def _sequence_scores(row: _Row, log_p: np.ndarray, likeliest: np.ndarray) -> list[SequenceScore]:
    """Returns the scores of each sequence of a row from those of all positions, (S, T) and (S,)."""
    length = len(row.inputs)
    scores = []
    for candidate, last in enumerate(row.last):
        targets = np.array([*row.inputs[1:], last])
        scores.append(SequenceScore(log_p[:length, candidate], likeliest[:length] == targets))
    return scores
