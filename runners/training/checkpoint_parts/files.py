"""Files of a checkpoint that are read before its arrays, and that may be damaged: metrics, times, the saved state."""

from typing import Any, TypedDict

import orbax.checkpoint as ocp
from etils import epath

from layers.errors import UsageError
from runners.training.input_state import SavedState
from tasks.storage.files import Place, reached
from tasks.storage.json_values import Count, parsed, require_type
from tasks.storage.jsonl import finite

# What orbax's parsers raise for damaged files.
DAMAGED = (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError)


class _Loss(TypedDict):
    loss: float | None  # None: not finite


class _Metrics(_Loss, total=False):
    phase: Count


def is_listed(folder: Place) -> bool:
    """Returns whether orbax can list a checkpoint: its metrics, if it has some, and its time can be read.

    A checkpoint that another process has removed meanwhile counts as one that can be listed.

    Raises:
      UsageError: the files cannot be reached, which does not mean that they are damaged.
    """
    try:
        with reached(folder, "read", kind="Checkpoint"):
            return _is_listed(folder)
    except UsageError:
        if not folder.is_dir():
            return True
        raise


def _is_listed(folder: Place) -> bool:
    file = folder / "metrics" / "metrics"
    try:
        if file.exists():
            require_type(finite(parsed(file.read_text())), _Metrics, "it")
        found = ocp.path.step.Metadata(step=int(folder.name), path=epath.Path(folder)).commit_timestamp
        return found is not None or not folder.is_dir()
    except DAMAGED:
        return not folder.is_dir()


def saved_state(folder: Place) -> dict[str, Any]:
    """Returns what a checkpoint has besides arrays.

    Raises:
      OSError, ValueError: it cannot be read, or has values of other types.
    """
    extra = parsed((folder / "extra" / "metadata").read_text())
    require_type(extra, SavedState, "the saved state")
    return extra
