"""Runs tasks of lm-evaluation-harness with the model of a session, any number of times."""

import contextlib
import dataclasses
import random
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from layers.errors import UsageError, VortaroError, first_line
from runners.evals import adapter
from runners.evals.library import harness, quiet_harness
from runners.evals.task_files import all_requests, load_tasks
from runners.session import Session
from tasks.programs import EvalTasks

SEED, NUMPY_SEED, EXAMPLES_SEED = 0, 1234, 1234  # of the harness: Python's and numpy's, and of the choice of examples
BOOTSTRAP = 1000  # resamples for standard errors without a formula; the harness takes 100,000 in several processes


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Results of one run of tasks."""

    scalars: Mapping[str, Mapping[str, float]]  # by task or group: TASK/METRIC, TASK/METRIC_stderr ...
    samples: Mapping[str, Sequence[Mapping[str, Any]]]  # by task: each document with its requests and answers


class TaskSuite:
    """Tasks whose files and data are loaded, with the model that runs them.

    Args:
      session: the session; all its processes create and run the same suite.
      tasks: which tasks, and how many documents and examples of them.
      batch_tokens: positions of a batch; None depends on the training batch (runners.evals.placement).
      report: prints a line on each kind of request.
    Raises:
      UsageError: the harness is not installed, the model does not fit, or a task cannot be loaded or has a request
        that cannot be built or computed. All requests are built, so that a run does not end late.
    """

    def __init__(
        self,
        session: Session,
        tasks: EvalTasks,
        *,
        batch_tokens: int | None = None,
        report: Callable[[str], None] = print,
    ):
        self._tasks = tasks
        with self._same_error_in_all(session), _seeded():
            self._model = adapter.session_model(session, batch_tokens, report)
            self._loaded = load_tasks(tasks)
            self._seed_examples()
            requests = self._model.check(all_requests(self._loaded["tasks"], tasks.limit))
        adapter.require_same_requests(session, requests)

    def _seed_examples(self) -> None:
        for task in self._loaded["tasks"].values():
            task.set_fewshot_seed(seed=EXAMPLES_SEED)

    @contextlib.contextmanager
    def _same_error_in_all(self, session: Session) -> Iterator[None]:
        """Raises the error of the first process that has one in all of them, so that none waits for the others."""
        wrong = None
        try:
            yield
        except UsageError as error:
            wrong = error
        if message := session.processes.first_error(None if wrong is None else str(wrong)):
            raise UsageError(message) from wrong

    def run(self, variables: Any) -> Outcome:
        """Runs all tasks with these variables.

        Raises:
          UsageError: a task cannot compute its metrics, or its requests do not fit the model.
        """
        self._model.variables = variables
        try:
            with quiet_harness(), _seeded():
                self._seed_examples()
                evaluate = harness("The evaluation of tasks").evaluator.evaluate
                options: dict[str, Any] = {"limit": self._tasks.limit, "bootstrap_iters": BOOTSTRAP}
                results = evaluate(lm=self._model, task_dict=self._loaded, **options)
        except VortaroError:
            raise
        except Exception as error:  # task files contain code
            if any(frame.filename == adapter.__file__ for frame in traceback.extract_tb(error.__traceback__)):
                raise
            names = ", ".join(self._loaded["tasks"])
            raise UsageError(
                f"The evaluation of {names} failed in the harness: {type(error).__name__} {first_line(error)}. Correct "
                f"the task file."
            ) from error
        finally:
            self._model.variables = None
        return Outcome(scalars_of(results), results.get("samples", {}))


def scalars_of(results: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Returns the harness's results as scalars by task or group; values without a number are omitted.

    A metric of another filter than "none" has the filter's name: `gsm8k/exact_match,strict-match`. `documents` and
    `shots` are the numbers of documents and of solved examples in each prompt.
    """
    found: dict[str, dict[str, float]] = {}
    for task, values in results["results"].items():
        numbers = {key: value for key, value in values.items() if "," in key and isinstance(value, int | float)}
        scalars = {f"{task}/{key.removesuffix(',none')}": float(value) for key, value in numbers.items()}
        amounts = {
            "documents": results["n-samples"].get(task, {}).get("effective"),
            "shots": results["n-shot"].get(task),
        }
        if scalars:
            found[task] = scalars | {f"{task}/{name}": float(n) for name, n in amounts.items() if n is not None}
    return found


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    """Inside, global random numbers are those of the harness's command; after, they continue as before."""
    python, numpy = random.getstate(), np.random.get_state()
    random.seed(SEED)
    np.random.seed(NUMPY_SEED)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def suite_of(session: Session, report: Callable[[str], None]) -> TaskSuite | None:
    """Returns the tasks that run with every evaluation of an experiment; None if it has none."""
    tasks = session.test.evals
    return None if tasks is None else TaskSuite(session, tasks, report=report)
