"""Evaluates a checkpoint on tasks of lm-evaluation-harness."""

import dataclasses
from typing import TYPE_CHECKING, ClassVar

from layers.errors import UsageError
from runners.options import option
from runners.request import ModeOptions, Request

if TYPE_CHECKING:  # these import jax
    from registry.experiment import Experiment
    from tasks.programs import EvalTasks


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ModeOptions):
    """Flags of --mode=evals."""

    several_processes: ClassVar[bool] = True

    tasks: tuple[str, ...] = option(
        "tasks, groups or patterns, separated by commas; repeatable; by default those of the experiment",
        metavar="NAME,NAME",
        advice="Set EVAL_TASKS.",
        default=(),
    )
    task_path: str | None = option(
        "folder of further task files (YAML)", metavar="DIR", advice="Set EVAL_TASK_PATH.", default=None
    )
    num_fewshot: int | None = option(
        "solved examples in each prompt; by default as in the task file", advice="Set EVAL_FEWSHOT.", default=None
    )
    limit: int | None = option("documents of each task; by default all", advice="Set EVAL_LIMIT.", default=None)
    batch_tokens: int | None = option("positions per batch; by default at most those of training", default=None)
    log_samples: bool = option("write each document with its answers into the run folder", default=False)
    checkpoint: str = option("last, best or a step", default="last")


def run(request: Request, options: Options) -> int:
    """Prints the metrics of the tasks and adds them to metrics.jsonl and the report; returns the exit code."""
    from runners.training.evaluate_checkpoint import evaluate_tasks

    tasks = chosen_tasks(request.experiment, options)
    if options.batch_tokens is not None and options.batch_tokens < 1:
        raise UsageError(f"--batch_tokens must be at least 1 (got {options.batch_tokens}).")
    session = request.session(options, checkpoint=options.checkpoint)
    folder = request.open_workdir(session, record=False)
    more = {"batch_tokens": options.batch_tokens, "log_samples": options.log_samples}
    return evaluate_tasks(session, folder, tasks, options.checkpoint, **more)


def chosen_tasks(experiment: "Experiment", options: Options) -> "EvalTasks":
    """Returns the tasks of the flags; what they do not state is as in the experiment's Test().

    Raises:
      UsageError: neither names a task, or a number is too small.
    """
    from registry.build import build
    from tasks.programs import EvalTasks

    stated = build(experiment.Test(), "test").evals
    names = [name.strip() for text in options.tasks for name in text.split(",")]
    given = {
        "names": tuple(name for name in names if name) or None,
        "path": options.task_path,
        "limit": options.limit,
        "num_fewshot": options.num_fewshot,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if stated is None and "names" not in given:
        raise UsageError("--mode=evals needs tasks. Give --tasks=NAME,NAME or set EVAL_TASKS.")
    try:
        return EvalTasks(**given) if stated is None else dataclasses.replace(stated, **given)
    except ValueError as error:
        raise UsageError(f"--{error}.") from error
