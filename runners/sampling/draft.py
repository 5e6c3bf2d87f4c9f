"""The draft of speculative decoding: a smaller model of the same vocabulary, from another run folder."""

import bisect
import dataclasses
from typing import Any

import jax

from layers.errors import UsageError, errors_of
from layers.weights.products import FEW_TOKENS
from registry.build import build, config_of
from registry.resolve import resolve_recorded
from runners.session import Session
from runners.training.checkpoints import Checkpoints, require_checkpoints, run_and_checkpoint
from runners.training.workdir import recorded, require_shared_vocabulary
from tasks.batch import empty_batch
from tasks.decoding.speculation import Draft
from tasks.inputs.indexed import IndexedInput
from tasks.storage.files import place
from tasks.task import Task
from tasks.train_step import abstract_state, evaluated_variables

MOST_TOKENS = FEW_TOKENS - 1  # a pass reads one more


@dataclasses.dataclass(frozen=True)
class LoadedDraft:
    """A draft with its weights."""

    draft: Draft
    variables: Any  # a copy on every device


def _phase_at(experiment: Any, step: int) -> Any:
    """Returns the experiment of the phase that update `step` belongs to, as Session.of_update does."""
    if len(experiment.phases) == 1:
        return experiment
    borders = build(config_of(experiment, "train"), "train").input.borders
    return experiment.phases[bisect.bisect_left(borders, step)]


def load_draft(session: Session, source: str, tokens: int) -> LoadedDraft:
    """Returns the draft that `--draft=RUN@STEP` names, with a copy of its weights on every device.

    Args:
      session: that of the model, in whose mesh it is called.
      source: a run folder and a checkpoint: a step, last or best; RUN alone is its last checkpoint.
      tokens: tokens that it drafts at once.
    Raises:
      UsageError: the run has no such checkpoint, another vocabulary, or `tokens` is below 1.
    """
    where = f"--draft={source}"
    if not 1 <= tokens <= MOST_TOKENS:
        raise UsageError(f"--draft_tokens must be 1 to {MOST_TOKENS} (got {tokens}).")
    folder, which = run_and_checkpoint(source)
    with errors_of(where):
        require_checkpoints(folder)
        checkpoints = Checkpoints(place(folder), read_only=True, processes=session.processes)
        step = checkpoints.find(which)
        experiment = _phase_at(resolve_recorded(recorded(folder)), step)
        task: Task = build(config_of(experiment, "task"), "task")
        rows: IndexedInput = build(config_of(experiment, "train"), "train").input
    require_shared_vocabulary(where, folder, session.experiment, "Choose a draft with the same vocabulary.")
    abstract = session.abstract.like(abstract_state(task, empty_batch(rows.batch_size, rows.seq_len)))
    with errors_of(where):
        state, _ = checkpoints.require(abstract, str(step))
    checkpoints.close()
    return LoadedDraft(Draft(task, tokens), jax.jit(lambda state: evaluated_variables(task, state))(state))
