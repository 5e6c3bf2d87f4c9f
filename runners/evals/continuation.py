"""Continuations of prompts up to stop strings, in batches packed by length."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from runners.evals.packing import PackedBatch, counted
from runners.evals.placement import Placement, Reminder
from runners.session import Session
from tasks.decoding.generation import Memory, chunk_sizes, generate_in_chunks
from tasks.decoding.prompts import pad_prompts, shared_tokens
from tasks.decoding.sampler import Sampler
from tasks.vocabularies.vocabulary import Vocabulary

CHUNK = 32  # new tokens between two searches for stop strings; the loop on the devices stops only at stop tokens


@dataclasses.dataclass(frozen=True)
class Generation:
    """How prompts are continued."""

    sampler: Sampler
    new_tokens: int  # at most
    stops: tuple[str, ...]  # strings that end a continuation


class Continuer:
    """Continues prompts with a session's model.

    Args:
      session: the session.
      placement: the shapes of batches.
      report: prints a line on a long computation.
      seed: of random continuations.
    """

    def __init__(self, session: Session, placement: Placement, report: Callable[[str], None] = print, seed: int = 0):
        self._session, self._placement, self._report, self._seed = session, placement, report, seed
        self._batches, self._shapes = 0, set[tuple[int, int, int]]()  # shapes: rows, prompt tokens, new tokens
        self._caveat = session.task.decoding_caveat()

    def count(self) -> str:
        """Returns the number of batches and shapes since the last call, in words."""
        words = counted(self._batches, self._shapes)
        self._batches, self._shapes = 0, set()
        return words

    def __call__(self, variables: Any, prompts: Sequence[Sequence[int]], settings: Generation) -> list[list[int]]:
        """Returns the new token ids of each prompt, up to a stop token or the first stop string, which they include.

        Called by all processes with the same prompts. Equal prompts are continued once, unless that is random.
        """
        if self._caveat is not None:
            self._report(self._caveat)
            self._caveat = None
        is_random = settings.sampler.temperature > 0
        keys = [(number if is_random else 0, *prompt) for number, prompt in enumerate(prompts)]
        unique = list(dict.fromkeys(keys))
        texts = [_StoppingText(self._session.task.vocabulary, settings.stops) for _ in unique]
        packer = self._placement.prompt_packer(settings.new_tokens)
        self._shared = shared_tokens(self._session.task, [key[1:] for key in unique])
        reminder = Reminder(self._report, len(unique), "Continued")
        for batch in packer.batches([len(key) - 1 for key in unique]):
            chosen = [unique[number][1:] for number in batch.numbers]
            self._fill(variables, chosen, batch, settings, [texts[number] for number in batch.numbers])
            reminder.add(len(batch.numbers))
        found = dict(zip(unique, texts, strict=True))
        return [found[key].ids for key in keys]

    def _fill(
        self,
        variables: Any,
        prompts: Sequence[Sequence[int]],
        batch: PackedBatch,
        settings: Generation,
        texts: Sequence["_StoppingText"],
    ) -> None:
        """Extends the texts of a batch chunk by chunk until all have ended."""
        padding = [prompts[-1]] * (batch.rows - len(prompts))
        tokens, real = self._placement.put_rows(pad_prompts([*prompts, *padding], length=batch.length))
        # At most what all prompts of the call share, so that few programs are compiled.
        shared = min(self._shared, shared_tokens(self._session.task, [*prompts, *padding], batch.length))
        rng = jax.random.fold_in(jax.random.key(self._seed), self._batches)
        choices: dict[str, Any] = {
            "sampler": settings.sampler,
            "stop_ids": self._session.task.vocabulary.stop_ids,
            "capacity": batch.length + settings.new_tokens,
        }

        def run(generate: Any, tokens: Any, real: Any, size: int, memory: Memory | None) -> tuple[jax.Array, Memory]:
            given = (self._session.task, variables, tokens, real, rng)
            once = shared if memory is None else 0
            result = generate(*given, new_tokens=size, memory=memory, shared=once, **choices)
            return self._session.settle(result)

        self._batches += 1
        self._shapes.add((batch.rows, batch.length, settings.new_tokens))
        for drawn, _ in generate_in_chunks(run, tokens, real, None, chunk_sizes(settings.new_tokens, CHUNK)):
            for text, row in zip(texts, drawn, strict=False):  # rows of padding have no text
                text.add(row)
            if all(text.has_ended for text in texts):
                return


class _StoppingText:
    """Token ids up to a stop token, or to the first token with which their text contains a stop string."""

    def __init__(self, vocabulary: Vocabulary, stops: Sequence[str]):
        self._vocabulary, self._stops = vocabulary, stops
        self.ids: list[int] = []
        self.has_ended = False

    def add(self, drawn: np.ndarray) -> None:
        """Appends new tokens, unless the text has ended."""
        if self.has_ended:
            return
        before = len(self.ids)
        self.ids += drawn.tolist()
        end = next((i for i, number in enumerate(self.ids) if number in self._vocabulary.stop_ids), None)
        if end is not None:
            del self.ids[end + 1 :]
            self.has_ended = True
        if self._stops_in(self.ids):
            end = next(end for end in range(before + 1, len(self.ids) + 1) if self._stops_in(self.ids[:end]))
            del self.ids[end:]
            self.has_ended = True

    def _stops_in(self, ids: Sequence[int]) -> bool:
        text = self._vocabulary.decode(ids)
        return any(stop in text for stop in self._stops)
