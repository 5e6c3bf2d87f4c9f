"""Evaluation of a checkpoint on a held-out split, or on tasks of lm-evaluation-harness."""

import json
from collections.abc import Mapping
from typing import Any

from registry.runs.metrics import EVALS
from runners.evals.suite import Outcome, TaskSuite
from runners.evals.tables import print_table
from runners.session import Session
from runners.training import metrics_log, report
from runners.training.checkpoints import Checkpoints
from runners.training.evaluate import evaluate
from runners.training.progress import summary
from tasks.programs import EvalTasks
from tasks.storage.files import Place, make_folder, write_whole
from tasks.storage.jsonl import append_line, finite

SAMPLES = "evals"  # folder of the documents and answers that --log_samples writes


def evaluate_checkpoint(session: Session, workdir: Place, split: str, checkpoint: str) -> int:
    """Prints the metrics of a split and adds them to metrics.jsonl unless it has them; returns the exit code.

    Raises:
      UsageError: the checkpoint is missing.
    """
    with session.placed():
        state, _ = Checkpoints(workdir, read_only=True, processes=session.processes).require(
            session.abstract.state, checkpoint
        )
        scalars = evaluate(session, session.functions.evaluated(state), split)
    step = int(state.step)
    print(f"{session.name} step {step} {split}: {summary(scalars)}")
    known = {(line["step"], line["split"]) for line in metrics_log.read(workdir)}
    if (step, split) not in known and session.processes.primary:
        append_line(workdir / metrics_log.METRICS, {"step": step, "split": split, **scalars})
    return 0


def evaluate_tasks(
    session: Session,
    workdir: Place,
    tasks: EvalTasks,
    checkpoint: str,
    *,
    batch_tokens: int | None = None,
    log_samples: bool = False,
) -> int:
    """Prints the metrics of tasks and adds them to metrics.jsonl and the report; returns the exit code.

    Args:
      session: the session.
      workdir: the run folder.
      tasks: the tasks.
      checkpoint: last, best or a step.
      batch_tokens: positions per batch; see runners.evals.placement.
      log_samples: whether each document is written with its answers: evals/STEP/TASK.jsonl.
    Raises:
      UsageError: the checkpoint is missing, or a task cannot be loaded or computed.
    """
    suite = TaskSuite(session, tasks, batch_tokens=batch_tokens)
    with session.placed():
        state, _ = Checkpoints(workdir, read_only=True, processes=session.processes).require(
            session.abstract.state, checkpoint
        )
        outcome = suite.run(session.functions.evaluated(state))
    step = int(state.step)
    print(f"{session.name} step {step}:")
    print_table(outcome.scalars)
    if not session.processes.primary:
        return 0
    known = [{**line} for line in metrics_log.read(workdir)]
    for scalars in outcome.scalars.values():
        line = {"step": step, "split": EVALS, **scalars}
        if finite(line) not in known:
            append_line(workdir / metrics_log.METRICS, line)
    if log_samples:
        folder = _write_samples(workdir / SAMPLES / f"{step:08}", outcome)
        print(f"Wrote the documents and answers to {folder}.")
    report.write(workdir)
    return 0


def _write_samples(folder: Place, outcome: Outcome) -> Place:
    """Writes one file of JSON lines per task; returns the folder."""
    make_folder(folder)
    for task, samples in outcome.samples.items():
        lines = (json.dumps(_plain(sample), ensure_ascii=False, default=str) for sample in samples)
        write_whole(folder / f"{task}.jsonl", "".join(f"{line}\n" for line in lines))
    return folder


def _plain(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a document and its answers without the hashes that the harness adds."""
    return {key: finite(value) for key, value in sample.items() if not key.endswith("_hash")}
