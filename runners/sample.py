"""Sampling text from a checkpoint."""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from layers.errors import UsageError
from runners import report
from runners.checkpoints import Checkpoints
from runners.decoding_state import read_memory, write_memory
from runners.session import Session
from tasks.decoding import Sampler, generate, pad_prompts


@dataclasses.dataclass(frozen=True)
class SampleOptions:
    """What the command line says about sampling."""

    prompts: Sequence[str]
    sampler: Sampler
    new_tokens: int = 256
    copies: int = 1  # samples per prompt
    seed: int = 0
    stop: bool = True  # end a sample at the vocabulary's stop token
    checkpoint: str = "last"
    load_state: str | None = None  # go on behind what this file remembers
    save_state: str | None = None  # write what was read and drawn to this file


def sample(session: Session, workdir: Path, options: SampleOptions) -> int:
    """Prints the continuations, writes them to samples/, and says how fast they came.

    Raises:
      UsageError: there is no checkpoint, or prompt and sample are longer than the model's positions.
    """
    if options.new_tokens < 1:
        raise UsageError(f"--max_new_tokens={options.new_tokens} must be at least 1.")
    vocabulary = session.task.vocabulary
    start = [] if vocabulary.start_id is None or options.load_state is not None else [vocabulary.start_id]
    prompts = [[*start, *vocabulary.encode(text)] for text in options.prompts for _ in range(options.copies)]
    with session.placed():
        state, _ = Checkpoints(workdir, read_only=True).require(session.abstract_state, options.checkpoint)
        # The step, and what tells weights of one step apart.
        norm = session.norm_of(state.variables["params"]).item()
        read_by = f"the weights of step {int(state.step)} (param_norm {norm:.4g})"
        memory, past, room = None, 0, 0
        if options.load_state is not None:
            memory, room = read_memory(options.load_state, session, prompts, read_by)
            past = int(np.max(memory.position_b)) + 1
            print(f"Going on behind the {past} tokens of {options.load_state}:", flush=True)
        tokens, real = pad_prompts(prompts, allow_empty=memory is not None)
        _check_room(session, past + tokens.shape[1], options.new_tokens)
        stop_id = vocabulary.stop_id if options.stop else None
        choices = {"new_tokens": options.new_tokens, "sampler": options.sampler, "stop_id": stop_id}
        choices["capacity"] = capacity = room + tokens.shape[1] + options.new_tokens
        arguments = (session.task, state.variables, tokens, real, jax.random.key(options.seed))
        compiled = generate.lower(*arguments, memory=memory, **choices).compile()
        began = time.perf_counter()
        drawn, memory = compiled(*arguments[1:], memory=memory)
        drawn = np.asarray(drawn)
        seconds = time.perf_counter() - began
    texts, count = [], 0
    for prompt, row in zip(prompts, drawn, strict=True):
        ids = _until(row.tolist(), stop_id)
        count += len(ids)
        texts.append(vocabulary.decode([*prompt, *ids]))
    text = "\n".join(("" if len(texts) == 1 else f"--- sample {i + 1}\n") + body for i, body in enumerate(texts))
    print(text)
    print(f"\n[{count} tokens in {seconds:.2f} s: {count / seconds:,.0f} tokens/s, step {int(state.step)}]", flush=True)
    if options.save_state is not None:
        write_memory(options.save_state, session, memory, capacity, read_by)
        print(f"Kept what {int(np.max(memory.position_b)) + 1} tokens left behind in {options.save_state}.", flush=True)
    folder = workdir / "samples"
    folder.mkdir(exist_ok=True)
    goes_on = "" if options.load_state is None else "-goes-on"
    (folder / f"{int(state.step):08}-seed{options.seed}{goes_on}.txt").write_text(text + "\n")
    report.write(workdir)
    return 0


def _check_room(session: Session, read: int, new_tokens: int) -> None:
    limit = session.task.context_limit()
    if limit is not None and read + new_tokens > limit:
        raise UsageError(
            f"The {read} tokens before and {new_tokens} new ones are more than the {limit} positions this model has "
            f"learned: try --max_new_tokens={max(1, limit - read)}."
        )


def _until(ids: list[int], stop_id: int | None) -> list[int]:
    return ids[: ids.index(stop_id)] if stop_id in ids else ids
