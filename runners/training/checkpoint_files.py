"""Files of a checkpoint that are read before its arrays, and that may be damaged: metrics, times, the saved state."""

from typing import Any, TypedDict

import orbax.checkpoint as ocp
from etils import epath

from runners.training.input_state import SavedState
from tasks.storage.files import Place
from tasks.storage.json_values import Count, parsed, require_type
from tasks.storage.jsonl import finite


class _Loss(TypedDict):
    loss: float | None  # None: not finite


class _Metrics(_Loss, total=False):
    phase: Count


def is_listed(folder: Place) -> bool:
    """Returns whether orbax can list a checkpoint: its metrics, if it has some, and its time can be read."""
    file = folder / "metrics" / "metrics"
    try:
        if file.exists():
            require_type(finite(parsed(file.read_text())), _Metrics, "it")
        assert ocp.path.step.Metadata(step=int(folder.name), path=epath.Path(folder)).commit_timestamp
    except Exception:  # orbax passes on exceptions of its parsers
        return False
    return True


def saved_state(folder: Place) -> dict[str, Any]:
    """Returns what a checkpoint has besides arrays.

    Raises:
      OSError, ValueError: it cannot be read, or has values of other types.
    """
    extra = parsed((folder / "extra" / "metadata").read_text())
    require_type(extra, SavedState, "the saved state")
    return extra
