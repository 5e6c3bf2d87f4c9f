"""Sampling text from a checkpoint."""

import dataclasses
import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from layers.errors import UsageError
from runners.sampling.decoding_state import read_memory, write_memory
from runners.sampling.draft import LoadedDraft, load_draft
from runners.session import Session
from runners.training import report
from runners.training.checkpoints import Checkpoints
from tasks.decoding.generation import Memory, chunk_sizes, generate, generate_in_chunks, generate_in_place
from tasks.decoding.prompts import pad_prompts, shared_tokens
from tasks.decoding.sampler import Sampler
from tasks.decoding.speculation import speculate, speculate_in_place
from tasks.storage.files import Place, make_folder, write_whole
from tasks.task import Task
from tasks.vocabularies.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True)
class SampleOptions:
    """Options of --mode=sample."""

    prompts: Sequence[str]
    sampler: Sampler
    new_tokens: int = 256
    copies: int = 1  # samples per prompt
    seed: int = 0
    stream: bool = False  # show the text as it is drawn; for one sample
    stop: bool = True  # end a sample at a stop token of the vocabulary
    checkpoint: str = "last"
    load_state: str | None = None  # file of a decoding state to continue from
    save_state: str | None = None  # file that the final decoding state is written to
    draft: str | None = None  # run folder and checkpoint of a smaller model that drafts tokens
    draft_tokens: int = 4  # tokens that it drafts at once


def sample(session: Session, workdir: Place, options: SampleOptions) -> int:
    """Prints the continuations and the tokens per second, and writes the continuations to samples/.

    Raises:
      UsageError: the run has no checkpoint, or prompt and sample exceed the model's learned positions.
    """
    if options.new_tokens < 1:
        raise UsageError(f"--max_new_tokens must be at least 1 (got {options.new_tokens}).")
    if options.draft and options.load_state:
        raise UsageError("--load_state has no state of a draft. Remove --draft or --load_state.")
    if session.processes.several and (options.load_state or options.save_state):
        raise UsageError("--load_state and --save_state need a single process, because they use one file. Remove them.")
    vocabulary, has_state = session.task.vocabulary, options.load_state is not None
    encoded = [prompt_ids(vocabulary, text, has_state) for text in options.prompts]
    prompts = [ids for ids in encoded for _ in range(options.copies)]  # of all rows
    with session.placed():
        state, _ = Checkpoints(workdir, read_only=True, processes=session.processes).require(
            session.abstract.state, options.checkpoint
        )
        # The step and a norm, which identifies the weights of different runs at one step.
        variables = session.functions.evaluated(state)
        norm = session.functions.norm_of(variables["params"]).item()
        read_by = f"the weights of step {int(state.step)} (param_norm {norm:.4g})"
        memory, past_tokens, past_capacity = None, 0, 0
        if options.load_state is not None:
            memory, past_capacity = read_memory(options.load_state, session, prompts, read_by)
            past_tokens = int(np.max(memory.position_b)) + 1
            print(f"Continuing after the {past_tokens} tokens of {options.load_state}:", flush=True)
        if caveat := session.task.decoding_caveat():
            print(caveat, flush=True)
        tokens, real = pad_prompts(prompts if has_state else encoded, allow_empty=has_state)
        check_room(session.task, past_tokens + tokens.shape[1], options.new_tokens)
        draft = None if options.draft is None else load_draft(session, options.draft, options.draft_tokens)
        if draft is not None:
            check_room(draft.draft.task, tokens.shape[1], options.new_tokens, "the draft")
        stop_ids = vocabulary.stop_ids if options.stop else ()
        capacity = past_capacity + tokens.shape[1] + options.new_tokens + (0 if draft is None else draft.draft.tokens)
        drawing = _Drawing(session, variables, options, stop_ids, draft)
        reading = {} if has_state else drawing.reading(encoded)
        texts = _Texts(vocabulary, prompts, stop_ids, streams=options.stream)
        for drawn, after in drawing.pieces(tokens, real, memory, capacity, reading):
            memory = after
            if texts.add(drawn):
                break
    text, count = texts.finish()
    rate = f"{count} tokens in {drawing.seconds:.2f} s: {count / drawing.seconds:,.0f} tokens/s"
    print(f"\n[{rate}, step {int(state.step)}{drawing.accepted(memory)}]", flush=True)
    assert memory is not None
    if options.save_state is not None:
        write_memory(options.save_state, session, memory, capacity, read_by)
        print(f"Saved the state after {int(np.max(memory.position_b)) + 1} tokens to {options.save_state}.", flush=True)
    if not session.processes.primary:
        return 0
    folder = workdir / "samples"
    make_folder(folder)
    name = f"{int(state.step):08}-seed{options.seed}{'-goes-on' if has_state else ''}.txt"
    write_whole(folder / name, text + "\n")
    report.write(workdir)
    return 0


def prompt_ids(vocabulary: Vocabulary, text: str, is_continuation: bool) -> list[int]:
    """Returns the prompt's token ids; an empty list becomes the stop token, the end of a document."""
    if is_continuation:
        return vocabulary.encode(text)
    ids = [*([] if vocabulary.start_id is None else [vocabulary.start_id]), *vocabulary.encode(text)]
    return ids or ([] if vocabulary.stop_id is None else [vocabulary.stop_id])


def check_room(task: Task, read: int, new_tokens: int, whose: str = "the model") -> None:
    """Raises a UsageError if `read` and `new_tokens` together exceed the learned positions of a model."""
    limit = task.context_limit()
    if limit is not None and read + new_tokens > limit:
        raise UsageError(
            f"{read} prompt tokens and {new_tokens} new ones exceed {whose}'s {limit} learned positions. "
            f"Use --max_new_tokens={max(1, limit - read)}."
        )


STREAMED = 8  # tokens per chunk when streaming


class _Drawing:
    """Decoding of all new tokens at once, or in chunks when streaming."""

    def __init__(
        self,
        session: Session,
        variables: Any,
        options: SampleOptions,
        stop_ids: tuple[int, ...],
        draft: LoadedDraft | None,
    ):
        self._draft = draft
        self._tasks, self._weights, self._functions = [session.task], [variables], (generate, generate_in_place)
        self._rng, self._copies = jax.random.key(options.seed), options.copies
        self._sizes = chunk_sizes(options.new_tokens, STREAMED if options.stream else options.new_tokens)
        self._choices: dict[str, Any] = {"sampler": options.sampler, "stop_ids": stop_ids}
        if draft is not None:
            self._choices["draft"] = draft.draft
            self._tasks, self._weights = [session.task, draft.draft.task], [variables, draft.variables]
            self._functions = (speculate, speculate_in_place)
        self.seconds = 0.0  # of decoding, compilation excluded
        self._chunks = 0  # drawn so far

    def reading(self, prompts: Sequence[Sequence[int]]) -> dict[str, int]:
        """Returns how the prompts of a new state are read: what they share is read once, and so is each of them."""
        shared = min(shared_tokens(task, prompts) for task in self._tasks)
        if shared:
            print(f"The prompts share their first {shared} tokens, which are read once.", flush=True)
        return {"shared": shared, "copies": self._copies}

    def pieces(
        self, tokens: np.ndarray, real: np.ndarray, memory: Memory | None, capacity: int, reading: dict[str, int]
    ) -> Iterator[tuple[np.ndarray, Memory]]:
        """Yields chunks of new tokens, (rows, tokens), with the memory after them."""
        programs: dict[tuple[Any, int], Any] = {}

        def run(draw: Any, tokens: Any, real: Any, size: int, memory: Memory | None) -> tuple[jax.Array, Memory]:
            arguments = (*self._weights, tokens, real, self._rng)
            if (key := (draw, size)) not in programs:
                choices = {**self._choices, "new_tokens": size, "capacity": capacity}
                choices |= reading if draw is self._functions[0] else {}
                programs[key] = draw.lower(self._tasks[0], *arguments, memory=memory, **choices).compile()
            began = time.perf_counter()
            result = jax.block_until_ready(programs[key](*arguments, memory=memory))
            self.seconds += time.perf_counter() - began
            self._chunks += 1
            return result

        return generate_in_chunks(run, tokens, real, memory, self._sizes, self._functions)

    def accepted(self, memory: Any) -> str:
        """Returns how many tokens each pass of the model gave, if they were drafted; else an empty text."""
        if self._draft is None or not int(memory.rounds):
            return ""
        passes = int(memory.rounds)
        new = int(memory.drawn) - self._chunks  # the first token of each chunk is not drafted
        return f", {new / passes:.2f} tokens per pass with a draft of {self._draft.draft.tokens}"


class _Texts:
    """Text of the samples, printed chunk by chunk if `streams`, else at the end."""

    def __init__(
        self, vocabulary: Vocabulary, prompts: Sequence[Sequence[int]], stop_ids: tuple[int, ...], streams: bool
    ):
        self._vocabulary, self._prompts, self._stop_ids, self._streams = vocabulary, prompts, stop_ids, streams
        self._ids: list[list[int]] = [[] for _ in prompts]
        self._shown = ""
        if streams:
            self._show()

    def add(self, drawn: np.ndarray) -> bool:
        """Appends a chunk of tokens; returns whether every row has stopped."""
        for ids, row in zip(self._ids, drawn.tolist(), strict=True):
            ids += row
        if self._streams:
            self._show()
        return all(not set(self._stop_ids).isdisjoint(ids) for ids in self._ids)

    def _texts(self) -> list[str]:
        rows = zip(self._prompts, self._ids, strict=True)
        return [self._vocabulary.decode([*prompt, *until_stop(ids, self._stop_ids)]) for prompt, ids in rows]

    def _show(self) -> None:
        text = self._texts()[0].rstrip("\ufffd")  # an incomplete character
        if text.startswith(self._shown):
            print(text[len(self._shown) :], end="", flush=True)
            self._shown = text

    def finish(self) -> tuple[str, int]:
        """Prints the remaining text; returns all text and the number of sampled tokens."""
        texts = self._texts()
        parts = (("" if len(texts) == 1 else f"--- sample {i + 1}\n") + body for i, body in enumerate(texts))
        text = "\n".join(parts)
        print(text[len(self._shown) :] if text.startswith(self._shown) else text)
        return text, sum(len(until_stop(ids, self._stop_ids)) for ids in self._ids)


def until_stop(ids: list[int], stop_ids: tuple[int, ...]) -> list[int]:
    """Returns the ids before the first stop token; all of them if there is none."""
    return list(itertools.takewhile(lambda number: number not in stop_ids, ids))
