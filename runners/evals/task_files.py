"""Loading tasks by name: those of lm-evaluation-harness, and those of task files in a folder."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from layers.errors import UsageError, did_you_mean, first_line
from runners.evals.library import data_errors, harness, quiet_harness
from tasks.programs import EvalTasks


def load_tasks(wanted: EvalTasks) -> dict[str, dict[str, Any]]:
    """Returns the tasks and groups of tasks by name, as `lm_eval.evaluator.evaluate` takes them.

    The harness's own task files, 15,000 of them, are searched only if the folder `wanted.path` lacks a name.

    Raises:
      UsageError: the harness is not installed, a name is unknown, a file is not a task, or its data cannot be loaded.
    """
    lm_eval = harness("The evaluation of tasks")
    if wanted.path is not None and not Path(wanted.path).is_dir():
        raise UsageError(f"The folder of task files '{wanted.path}' does not exist. Correct --task_path.")
    loaded: dict[str, dict[str, Any]] = {"tasks": {}, "groups": {}}
    with quiet_harness() as errors:
        for manager, names in _managers(lm_eval, wanted):
            for name in names:
                found = _loaded(manager, name, errors)
                for kind in loaded:
                    loaded[kind] |= found.get(kind) or {}
    for name, task in loaded["tasks"].items():
        _require_text(name, task)
        _set_examples(task, wanted.num_fewshot)
    return loaded


def _managers(lm_eval: Any, wanted: EvalTasks) -> Iterator[tuple[Any, list[str]]]:
    """Yields indexes of task files, each with the names to load from it.

    Raises:
      UsageError: no index has a name.
    """
    remaining = list(dict.fromkeys(wanted.names))
    if not remaining:
        raise UsageError("No evaluation task is named. Give --tasks=NAME,NAME or set EVAL_TASKS.")
    if wanted.path is not None:
        own = lm_eval.tasks.TaskManager(include_path=wanted.path, include_defaults=False)
        found = [name for name in remaining if name in own.all_subtasks]
        yield own, found
        remaining = [name for name in remaining if name not in found]
    if not remaining:
        return
    index = _complete_index(wanted.path, tuple((file, file.stat().st_mtime_ns) for file in _files(wanted.path)))
    names = [match for name in remaining for match in index.match_tasks([name]) or [name]]
    unknown = [name for name in names if name not in index.all_tasks and not Path(name).is_file()]
    if unknown:
        raise _broken_file(lm_eval, wanted.path) or UsageError(
            f"Unknown evaluation task '{unknown[0]}'. {did_you_mean(unknown[0], index.all_tasks)}"
        )
    yield index, names


def _files(folder: str | None) -> list[Path]:
    """Returns the task files in a folder and below."""
    return [] if folder is None else sorted(Path(folder).rglob("*.yaml"))


@functools.lru_cache(maxsize=2)
def _complete_index(folder: str | None, versions: tuple[tuple[Path, int], ...]) -> Any:
    """Returns the index of all task files, the harness's own included, which takes seconds to read.

    Args:
      folder: the folder of further files.
      versions: those files and their times of modification.
    """
    del versions  # the key of the cache
    return harness("The evaluation of tasks").tasks.TaskManager(include_path=folder)


def _broken_file(lm_eval: Any, folder: str | None) -> UsageError | None:
    """Returns the error of the first task file in the folder that cannot be read; None if all can."""
    for file in _files(folder):
        try:
            lm_eval.tasks._yaml_loader.load_yaml(file, resolve_func=False)
        except Exception as error:  # YAML errors, missing includes
            return UsageError(f"The task file '{file}' cannot be read: {_reason(error)}.")
    return None


def _loaded(manager: Any, name: str, errors: Sequence[str]) -> dict[str, Any]:
    """Returns the tasks and groups of one name.

    Args:
      manager: an index of task files.
      name: the name.
      errors: what the harness has logged, which explains some of its exceptions.
    Raises:
      UsageError: the file is not a task, or its data cannot be loaded.
    """
    try:
        return manager.load([name])
    except data_errors() as error:
        raise UsageError(
            f"The data of the evaluation task '{name}' cannot be loaded: {_reason(error)}. Tasks of the harness load "
            f"data from the Hugging Face hub; without a network, use task files with local data (--task_path)."
        ) from error
    except Exception as error:  # task files contain code and templates
        reason = first_line(errors[-1]) if errors else _reason(error)
        raise UsageError(f"The evaluation task '{name}' cannot be loaded: {reason}.") from error


def _reason(error: Exception) -> str:
    """Returns an error as the part of a sentence; errors of keys as such, because their text is only the key."""
    line = " ".join(str(error).split())
    return (
        f"{type(error).__name__} {line}" if isinstance(error, KeyError | AttributeError) else first_line(line or error)
    )


def _require_text(name: str, task: Any) -> None:
    """Raises a UsageError if a task needs more than text, or runs code that the model writes."""
    if getattr(task, "MULTIMODAL", False):
        raise UsageError(
            f"The evaluation task '{name}' needs images or sound, which the model does not read. Remove it."
        )
    if getattr(task, "UNSAFE_CODE", False):
        raise UsageError(
            f"The evaluation task '{name}' runs code that the model writes. Remove it; it is not supported."
        )


def _set_examples(task: Any, wanted: int | None) -> None:
    """Sets the number of solved examples in each prompt; a task whose file sets 0 keeps it, as in the harness."""
    stated = task.get_config("num_fewshot")
    if stated is None or (wanted is not None and stated != 0):
        task.set_config(key="num_fewshot", value=wanted or 0)


def all_requests(tasks: Mapping[str, Any], limit: int | None) -> list[Any]:
    """Returns the requests of each task, so that errors in task files are found before a run starts.

    Args:
      tasks: the tasks by name.
      limit: first documents of each task; None is all of them.
    Raises:
      UsageError: a template of a task file does not fit its data, or a task has no document.
    """
    for name, task in tasks.items():
        try:
            with quiet_harness():
                task.build_all_requests(limit=limit, rank=0, world_size=1)
        except Exception as error:  # task files contain code and templates
            raise UsageError(
                f"The evaluation task '{name}' cannot build its requests: {_reason(error)}. Correct its task file."
            ) from error
        if not task.instances:
            raise UsageError(f"The evaluation task '{name}' has no document. Give its split data.")
    return [request for task in tasks.values() for request in task.instances]
