"""The end of a run at an update that is not finite: which value was the first, in a message and in a file.

The update is computed again from the last checkpoint, because those after it have overwritten the weights before it.
"""

import contextlib
import functools
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import jax
from jax.sharding import NamedSharding

from layers.errors import VortaroError, first_line
from layers.specs import P
from registry.runs.folders import NON_FINITE
from runners.compiled_functions import Updates
from runners.session import Session
from runners.training import report
from runners.training.checkpoints import Checkpoints
from runners.training.health import first_cause
from runners.training.input_state import own
from runners.training.origins.warm_start import begin
from tasks.batch import Batch
from tasks.step_summary import gradient_summaries, output_summaries, update_summary
from tasks.storage.files import Place, write_whole
from tasks.storage.jsonl import finite
from tasks.train_step import TrainState

MOST_UPDATES = 2_000  # that are computed again


def stop(session: Session, workdir: Place, step: int, state: TrainState, notify: Callable[[str], None]) -> NoReturn:
    """Ends a run at update `step`, whose loss, gradient or new weights are not finite; called by all processes.

    Writes `non_finite.json` to the run folder.

    Args:
      session: the complete run.
      workdir: its folder, in which no checkpoint is being written.
      step: number of the update.
      state: the state after it, which is deleted to make room.
      notify: prints a line.
    Raises:
      VortaroError: always; names the first value that is not finite.
    """
    jax.block_until_ready(state)
    for array in jax.tree.leaves(state):
        array.delete()
    checkpoints = Checkpoints(workdir, session.train, processes=session.processes)
    saved = checkpoints.steps()
    last = f"the last good checkpoint is of step {saved[-1]}" if saved else "no earlier checkpoint exists"
    cause = f"The loss, gradient or a new weight of step {step} is not finite"
    updates = step - max(saved, default=0)  # not above 0: a checkpoint of a run that dropped such updates
    if updates > MOST_UPDATES:
        cause += f" (which one is searched for in the first {MOST_UPDATES:,} updates after a checkpoint)"
    elif updates > 0:
        try:
            cause = _cause(session, workdir, step, checkpoints, notify)
        except Exception as error:  # of storage, data or memory: the run ends because of the update in any case
            cause += f" (which one was not found: {first_line(error)})"
    raise VortaroError(
        f"{cause}. The run stops without saving it; {last} in {workdir}. A lower learning rate, longer warm-up or "
        f"--set=task.non_finite=skip may help."
    )


def _cause(session: Session, workdir: Place, step: int, checkpoints: Checkpoints, notify: Callable[[str], None]) -> str:
    """Returns a sentence about the first value that is not finite, and writes the file."""
    with contextlib.closing(checkpoints):
        restored = checkpoints.restore(session.abstract.state)
    state, position = (begin(session)[0], None) if restored is None else (restored[0], restored[1]["input"])
    start = int(state.step)
    notify(f"Step {step} is not finite: computing updates {start + 1} to {step} again to find the first such value")
    batches: Any = session.host_batches.iterate(session.train.input, own(position))
    with contextlib.closing(batches):
        state, batch = _before(session, state, batches, step)
    phase = session.of_update(step)
    found = summaries(phase, state, batch)
    shapes = {row.path: row.shape for row in phase.task.weight_table()}
    cause = first_cause.find(step, shapes, found)
    record = {"step": step, "replayed_from": start, "cause": cause, **first_cause.record(shapes, found)}
    text = json.dumps(finite(record), indent=1)
    session.processes.run_in_first(lambda: _write(workdir, text))  # before another process can end it
    return f"{cause} (details in {NON_FINITE})"


def _write(workdir: Place, text: str) -> None:
    """Writes the file, and the page of the run with its cause, whose failure does not matter."""
    write_whole(workdir / NON_FINITE, text)
    with contextlib.suppress(Exception):  # of metrics, samples or a store
        report.write(workdir)


def _before(session: Session, state: TrainState, batches: Iterator[Any], step: int) -> tuple[TrainState, Batch]:
    """Returns the state before update `step`, computed from an earlier one, and the batch of the update."""
    updates: dict[int, Updates] = {}  # by phase
    for number, (batch, _) in zip(itertools.count(int(state.step) + 1), batches, strict=False):
        if number == step:
            return state, batch
        phase = session.of_update(number)
        of_phase = updates.setdefault(phase.experiment.phase, Updates(phase.functions))
        state = session.settle(of_phase.of(batch)(state, batch, phase.seed))
    raise AssertionError(f"The input ends before update {step}.")


def summaries(session: Session, state: TrainState, batch: Batch) -> first_cause.Summaries:
    """Returns what is known of an update, as numpy arrays; called by all processes."""
    task, program, everywhere = session.task, session.train, NamedSharding(session.mesh, P())
    of_update = functools.partial(update_summary, log_every=program.log_every, borders=program.input.borders)
    functions = (output_summaries, gradient_summaries, of_update)
    compiled = [jax.jit(functools.partial(function, task), out_shardings=everywhere) for function in functions]
    arguments = (state, batch, session.seed)
    found = [jax.device_get(session.settle(function(*arguments))) for function in compiled]
    segments = None
    if batch.segment_ids is not None:
        segments = jax.device_get(jax.jit(lambda x: x, out_shardings=everywhere)(batch.segment_ids))
    return first_cause.Summaries(*found, segments=segments)
