"""Imports lm-evaluation-harness (Gao et al., EleutherAI) on first use, and keeps its output short."""

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any

from layers.errors import missing_package

LOGGERS = ("lm_eval", "datasets", "huggingface_hub", "evaluate", "fsspec")


def harness(subject: str) -> Any:
    """Returns the package lm_eval with the modules that evaluations use.

    Args:
      subject: what needs it, for the error message.
    Raises:
      UsageError: it is not installed.
    """
    try:
        import lm_eval
        import lm_eval.api.model
        import lm_eval.evaluator
        import lm_eval.models.utils
        import lm_eval.tasks
        import lm_eval.tasks._yaml_loader
        import lm_eval.utils
    except ImportError as error:
        raise missing_package(subject, "lm_eval", "evals") from error
    return lm_eval


def data_errors() -> tuple[type[Exception], ...]:
    """Returns the exceptions of data sets that cannot be found, downloaded or read."""
    import datasets.exceptions

    return ConnectionError, OSError, datasets.exceptions.DatasetsError


class _Errors(logging.Handler):
    """Keeps messages of level ERROR."""

    def __init__(self):
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@contextlib.contextmanager
def quiet_harness() -> Iterator[list[str]]:
    """Inside, the harness logs nothing, shows progress bars only on a terminal, and starts no processes.

    It would fork this process, whose JAX threads do not survive that, to estimate standard errors. Yields a list that
    grows by the errors it would log, which explain the exceptions that follow.
    """
    loggers, errors = [logging.getLogger(name) for name in LOGGERS], _Errors()
    states = [(logger.level, logger.propagate) for logger in loggers]
    before = os.environ.get("DISABLE_MULTIPROC")
    os.environ["DISABLE_MULTIPROC"] = "1"
    for logger in loggers:
        logger.addHandler(errors)
        logger.setLevel(logging.ERROR)
        logger.propagate = False
    try:
        with _without_bars():
            yield errors.messages
    finally:
        for logger, (level, propagate) in zip(loggers, states, strict=True):
            logger.removeHandler(errors)
            logger.setLevel(level)
            logger.propagate = propagate
        if before is None:
            del os.environ["DISABLE_MULTIPROC"]
        else:
            os.environ["DISABLE_MULTIPROC"] = before


@contextlib.contextmanager
def _without_bars() -> Iterator[None]:
    """Inside, the harness prints no note on standard errors, and no progress bars unless on a terminal.

    Standard error itself is not redirected, because a thread may be loading TensorFlow (tasks.quiet_imports).
    """
    import datasets
    import lm_eval.api.metrics
    import lm_eval.api.task
    import tqdm

    had_bars = not datasets.are_progress_bars_disabled()
    silent = lambda iterable=None, **choices: iterable
    with contextlib.ExitStack() as stack:
        stack.enter_context(_replaced(lm_eval.api.metrics, "print", lambda *texts: None))
        if not sys.stderr.isatty():
            stack.enter_context(_replaced(lm_eval.api.task, "tqdm", silent))
            stack.enter_context(_replaced(tqdm, "tqdm", silent))  # the harness imports it where it estimates errors
            datasets.disable_progress_bars()
        try:
            yield
        finally:
            if had_bars:
                datasets.enable_progress_bars()


@contextlib.contextmanager
def _replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    """Inside, a name of a module has another value."""
    has_name, before = name in vars(module), getattr(module, name, None)
    setattr(module, name, value)
    try:
        yield
    finally:
        if has_name:
            setattr(module, name, before)
        else:
            delattr(module, name)
