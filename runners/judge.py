"""Judging a checkpoint on a held-out split."""

from runners import metrics_log
from runners.checkpoints import Checkpoints
from runners.evaluate import evaluate
from runners.peers import peers
from runners.progress import summary
from runners.session import Session
from tasks.storage import Place, append


def judge(session: Session, workdir: Place, split: str, checkpoint: str) -> int:
    """Prints the metrics of a split and adds them to metrics.jsonl, unless that step's are there.

    Raises:
      UsageError: there is no checkpoint.
    """
    with session.placed():
        state, _ = Checkpoints(workdir, read_only=True).require(session.abstract_state, checkpoint)
        scalars = evaluate(session, state.variables, split)
    step = int(state.step)
    print(f"{session.name} step {step} {split}: {summary(scalars)}")
    known = {(line["step"], line["split"]) for line in metrics_log.read(workdir)}
    if (step, split) not in known and peers().primary:
        append(workdir / metrics_log.METRICS, metrics_log.dump({"step": step, "split": split, **scalars}))
    return 0
