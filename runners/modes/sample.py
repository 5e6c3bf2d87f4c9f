"""Samples text from a checkpoint."""

import dataclasses
import sys
from typing import TYPE_CHECKING, ClassVar

from layers.errors import UsageError
from runners.options import option
from runners.request import ModeOptions, Request

if TYPE_CHECKING:  # imports jax
    from registry.experiment import Experiment


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ModeOptions):
    """Flags of --mode=sample."""

    several_processes: ClassVar[bool] = True

    prompt: tuple[str, ...] = option("text to continue; repeatable", default=())
    max_new_tokens: int = option("tokens to sample", default=256)
    temperature: float = option("0 is greedy", default=0.8)
    repetition_penalty: float = option("divides logits of tokens sampled before; 1 is none", default=1.0)
    top_k: int | None = option("sample from the k likeliest tokens", default=None)
    top_p: float | None = option("sample from the fewest tokens that hold this probability", default=None)
    typical_p: float | None = option("the same for the tokens whose surprisal is nearest to the entropy", default=None)
    eta: float | None = option("sample from tokens above a threshold that decreases with the entropy", default=None)
    window: int | None = option(
        "attention sees the last N positions, and keeps no others", advice="Set ATTENTION_WINDOW.", default=None
    )
    stream: bool | None = option("show one sample as it is generated; default on a terminal", default=None)
    num_samples: int = option("samples per prompt, generated as one batch", default=1)
    sample_seed: int = option("seed of the sampler", default=0)
    stop: bool = option("end at the vocabulary's stop token", default=True)
    save_state: str | None = option("write the decoding state to a file", metavar="FILE", default=None)
    load_state: str | None = option("continue from a file of --save_state", metavar="FILE", default=None)
    checkpoint: str = option("last, best or a step", default="last")
    draft: str | None = option(
        "run of a smaller model that drafts tokens, for more tokens per second", metavar="RUN@STEP", default=None
    )
    draft_tokens: int = option("tokens that the draft draws at once", default=4)


def run(request: Request, options: Options) -> int:
    """Prints the continuations and writes them to samples/; returns the exit code."""
    from runners.sampling.sample import SampleOptions, sample
    from runners.session import Session
    from tasks.decoding.sampler import Sampler

    session = request.session(options, checkpoint=options.checkpoint)
    workdir = request.open_workdir(session, record=False)
    if options.window is not None:
        session = Session(windowed(session.experiment, options.window), processes=request.processes)
    rules = ("temperature", "repetition_penalty", "top_k", "top_p", "typical_p", "eta")
    rows = len(options.prompt or [""]) * options.num_samples
    chosen = SampleOptions(
        stream=(sys.stdout.isatty() if options.stream is None else options.stream) and rows == 1,
        prompts=options.prompt or ["" if options.load_state else "\n"],
        sampler=Sampler(**{rule: getattr(options, rule) for rule in rules}),
        new_tokens=options.max_new_tokens,
        copies=options.num_samples,
        seed=options.sample_seed,
        stop=options.stop,
        checkpoint=options.checkpoint,
        load_state=options.load_state,
        save_state=options.save_state,
        draft=options.draft,
        draft_tokens=options.draft_tokens,
    )
    return sample(session, workdir, chosen)


def windowed(experiment: "Experiment", window: int) -> "Experiment":
    """Returns the experiment with softmax attention over the last `window` positions.

    Raises:
      UsageError: the experiment has no softmax attention, or the window is smaller than 1.
    """
    from registry.experiment import knobs_set_by
    from registry.records.snapshot import flat_config

    if not any(path.endswith(".window") for path in flat_config(experiment)):
        raise UsageError(f"--window needs softmax attention, which {type(experiment).__name__} does not have.")
    if window < 1:
        raise UsageError(f"--window must be at least 1 (got {window}).")
    with knobs_set_by("--window"):
        cls = type(experiment).derive(ATTENTION_WINDOW=window)
    return cls()
