"""Evaluation of a checkpoint on a held-out split."""

from runners.session import Session
from runners.training import metrics_log
from runners.training.checkpoints import Checkpoints
from runners.training.evaluate import evaluate
from runners.training.progress import summary
from tasks.storage.files import Place
from tasks.storage.jsonl import append_line


def evaluate_checkpoint(session: Session, workdir: Place, split: str, checkpoint: str) -> int:
    """Prints the metrics of a split and adds them to metrics.jsonl unless it has them; returns the exit code.

    Raises:
      UsageError: the checkpoint is missing.
    """
    with session.placed():
        state, _ = Checkpoints(workdir, read_only=True, processes=session.processes).require(
            session.abstract.state, checkpoint
        )
        scalars = evaluate(session, state.variables, split)
    step = int(state.step)
    print(f"{session.name} step {step} {split}: {summary(scalars)}")
    known = {(line["step"], line["split"]) for line in metrics_log.read(workdir)}
    if (step, split) not in known and session.processes.primary:
        append_line(workdir / metrics_log.METRICS, {"step": step, "split": split, **scalars})
    return 0
